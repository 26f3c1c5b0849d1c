"""What was set otherwise: machine, software, code, loader, batch, model and switches of two reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from steptime.comparison.comparison import Setting
from steptime.findings.case import Case, LoaderUse, OptimizerUse, SettingsUse
from steptime.report.facts import IN_PROCESS, WORKERS
from steptime.report.report import Environment, Report

ABSENT = "–"
"""A value that one side has and the other has not."""
KINDS = ("code", "loader", "batch", "model", "flag", "software", "machine")
"""In the order in which a person can do something about them."""
_FACTS = {WORKERS: "loader", "model": "model", "usable CPUs": "machine", "devices in the machine": "machine",
          "world size": "machine"}  # fmt: skip

Key = tuple[str, str]


def settings_between(before: Report, after: Report) -> tuple[Setting, ...]:
    """What differs, by kind. What only one of the reports knows of (a trace knows no versions) is left out; what
    belongs to a loader, an optimiser or a list of facts that both know is not."""
    one, other = dict(_values(before)), dict(_values(after))
    groups = {kind for kind, _ in one} & {kind for kind, _ in other}
    found = [
        Setting(kind, name, one.get((kind, name), ABSENT), other.get((kind, name), ABSENT))
        for kind, name in dict.fromkeys((*one, *other))
        if one.get((kind, name)) != other.get((kind, name)) and _known((kind, name), one, other, groups)
    ]
    return tuple(sorted(found, key=lambda setting: KINDS.index(setting.kind)))


def _known(key: Key, one: dict[Key, str], other: dict[Key, str], groups: set[str]) -> bool:
    """Whether a value that only one side has was looked for on the other side, too."""
    return (key in one and key in other) or (key[0] in ("loader", "flag") and key[0] in groups)


def _values(report: Report) -> Iterator[tuple[Key, str]]:
    case = report.processes[0].case
    yield from _environment(report.environment)
    yield from _loader(case.loader)
    yield from _batch(case)
    yield from _optimizers(case.optimizers)
    yield from _flags(case.settings)
    known = WORKERS if case.loader is not None else ""
    yield from (((_FACTS.get(name, "flag"), name), value) for name, value in report.environment.facts if name != known)
    formats = sorted({use.number_format for use in case.kernels if use.number_format})
    if formats:
        yield ("model", "number formats of the kernels"), ", ".join(formats)
    compiled = {(use.source.file, use.source.line) for use in case.compilations}
    if compiled or case.step.mode != "trace":  # the watch would have seen them
        yield ("model", "compiled functions"), str(len(compiled))


def _environment(environment: Environment) -> Iterator[tuple[Key, str]]:
    for kind, name, value in (
        ("machine", "host", environment.host),
        ("machine", "device", environment.device),
        ("machine", "ranks", str(environment.ranks)),
        ("software", "Python", environment.python),
        ("software", "torch", environment.torch),
        ("software", "steptime", environment.steptime),
        ("code", "commit", commit_words(environment)),
        ("code", "command", _arguments(environment.command)),
    ):
        if value:
            yield (kind, name), value


def commit_words(environment: Environment) -> str:
    """ "1a2b3c4d5e", with a plus where tracked files differed from it and a question mark where that is not known; ""
    outside of a repository."""
    mark = {True: "+", False: "", None: "?"}[environment.dirty]
    return environment.commit[:10] + mark if environment.commit else ""


def _arguments(command: str) -> str:
    """A command without the folders of its programs: another environment of the same job is no other job."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return " ".join(word if word.startswith("-") or "=" in word else word.rpartition("/")[2] or word for word in words)


def _loader(loader: LoaderUse | None) -> Iterator[tuple[Key, str]]:
    if loader is None:
        return
    workers = str(loader.workers) if loader.workers else IN_PROCESS
    for name, value in (
        (WORKERS, workers),
        ("dataset", loader.dataset),
        ("prefetch factor", str(loader.prefetch_factor) if loader.prefetch_factor else ""),
        ("persistent workers", _switch(loader.persistent_workers) if loader.workers else ""),
        ("pinned memory", _switch(loader.pin_memory)),
        ("collate function", loader.collate_name),
        ("batched fetch", _switch(loader.batched_fetch)),
    ):
        if value:
            yield ("loader", name), value


def _batch(case: Case) -> Iterator[tuple[Key, str]]:
    if case.loader is not None and case.loader.batch_size:
        yield ("batch", "batch size"), str(case.loader.batch_size)
    if case.step.mode != "trace":
        yield ("batch", "micro-batches a step"), f"{case.step.micro_batches:.3g}"


def _optimizers(optimizers: tuple[OptimizerUse, ...]) -> Iterator[tuple[Key, str]]:
    for number, use in enumerate(optimizers, 1):
        place = f" {number}" if len(optimizers) > 1 else ""
        kind = "fused" if use.fused else "foreach" if use.foreach else "single-tensor" if use.foreach is False else ""
        yield ("model", f"optimiser{place}"), " ".join(filter(None, (use.type, kind)))
        if use.elements:
            yield ("model", f"parameters{place}"), str(use.elements)


def _flags(settings: SettingsUse | None) -> Iterator[tuple[Key, str]]:
    if settings is None:
        return
    yield ("flag", "anomaly detection"), _switch(settings.detect_anomaly)
    yield ("flag", "deterministic algorithms"), _switch(settings.deterministic)
    yield ("flag", "another profiler"), _switch(settings.profiler)
    yield ("machine", "trainers on the host"), str(settings.trainers_on_host)


def _switch(value: bool) -> str:
    return "on" if value else "off"


def samples_per_step(case: Case) -> float | None:
    """Items that a step reads; None where that is not known."""
    if case.loader is None or not case.loader.batch_size:
        return None
    return case.loader.batch_size * case.loader.demand
