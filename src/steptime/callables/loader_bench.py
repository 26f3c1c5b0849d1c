"""Bench of a loader alone: times of its parts, and of batches with other settings.

The waits come from `machine/loader_script.py`, run in two fresh processes, which take the settings in opposite order.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptime.callables.bench import SCRIPTS, answer_of, over_processes
from steptime.errors import NothingMeasuredError
from steptime.launcher.variant import ERRORS, run_plain
from steptime.machine.machine import BUSY_CPUS
from steptime.machine.peaks import OtherLoad
from steptime.quantities import Estimate
from steptime.trials.containment import Workspace, contained, leave
from steptime.trials.execute import last_lines

SCRIPT = SCRIPTS / "loader_script.py"
PROCESSES = 2
PLATEAU = 0.03
"""Fraction of the shortest batch time within which a setting is as good. Each further worker takes memory."""
MOST_WORKERS = 16
"""Most workers that are tried without being asked for."""


@dataclass(frozen=True, slots=True)
class LoaderBenchOptions:
    """Options of a loader's bench. loader: "file.py:name" or "module:name", or a job's command as text. step: time of
    training between two batches, ns. workers: counts to try, empty for 0 to twice the usable CPUs. Further settings are
    tried with the best count: batch_sizes, prefetch (factors), contexts (start methods of workers), sharing
    (strategies); kept: items kept in memory. cold: also read items with their files out of the page cache. formats:
    also store samples in other formats and read them back. seconds: per setting and process."""

    loader: str
    step: float = 0.0
    workers: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    prefetch: tuple[int, ...] = ()
    contexts: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()
    pin_memory: bool = False
    kept: bool = False
    cold: bool = False
    formats: bool = False
    seconds: float = 1.0

    def variants(self, best: int, fewest: int) -> list[dict[str, Any]]:
        """Settings in addition to the number of workers, one change at a time, with the best number. Changes that need
        workers use the fewest that were tried if the best number is 0."""
        found: list[dict[str, Any]] = [{"workers": best, "batch_size": each} for each in self.batch_sizes]
        with_workers: list[dict[str, Any]] = [
            *({"prefetch_factor": each} for each in self.prefetch),
            *({"context": each} for each in self.contexts),
            *({"sharing": each} for each in self.sharing),
        ]
        found += [{"workers": best or fewest, **each} for each in with_workers]
        found += [{"workers": best, "pin_memory": True}] if self.pin_memory else []
        return found + ([{"workers": 0, "kept": True}] if self.kept else [])


class _TimedSetting(msgspec.Struct, frozen=True):
    """Times of a setting, as the script returns them."""

    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    context: str = ""
    sharing: str = ""
    pin_memory: bool = False
    kept: bool = False
    waits: list[float] = []
    first_ns: float = 0.0
    received_ns: float | None = None
    samples: int | None = None
    bytes: int = 0
    repeats: bool = False
    failed: str = ""


class LoaderParts(msgspec.Struct, frozen=True):
    """Times of a batch in the process that makes it. batches: number read. item_ns: per item; again_ns: the same item
    read again, None if impossible; cold_ns: item with its files out of the page cache, None if not requested or no file
    was read; cold_busy, fetched: CPU fraction, and bytes per item from disk, of the cold reading. collate_ns: per
    batch. busy: fraction of the time running or runnable on a CPU. length: number of items in the dataset."""

    batches: int
    item_ns: float
    collate_ns: float
    busy: float
    again_ns: float | None = None
    cold_ns: float | None = None
    cold_busy: float | None = None
    fetched: float = 0.0
    length: int | None = None


class StoredSamples(msgspec.Struct, frozen=True):
    """Samples stored in another format. bytes: per sample on disk. Times per sample: ordered_ns, random_ns with files
    out of the page cache, None if the system keeps them in memory; warm_ns at random from memory. left_out: reason why
    the format was not measured, else ""."""

    name: str
    bytes: float = 0.0
    ordered_ns: float | None = None
    random_ns: float | None = None
    warm_ns: float | None = None
    left_out: str = ""


class LoaderTransfer(msgspec.Struct, frozen=True):
    """Way to copy a batch to the device. bytes: size of the batch. host_ns: time until the CPU continues; device_ns:
    time of the copies. pin_ns: time to copy the batch into pinned memory first, None if it is not pinned."""

    name: str
    bytes: int
    host_ns: float
    device_ns: float
    pin_ns: float | None = None

    @property
    def rate(self) -> float:
        """Rate of the copies, B/s."""
        return self.bytes / max(self.device_ns, 1.0) * 1e9


class _LoaderAnswer(msgspec.Struct, frozen=True):
    torch: str = ""
    usable_cpus: int = 1
    dataset: str = ""
    workers: int = 0
    iterable: bool = False
    unbatched: bool = False
    parts: LoaderParts | None = None
    formats: tuple[StoredSamples, ...] = ()
    transfers: tuple[LoaderTransfer, ...] = ()
    no_transfer: str = ""
    settings: list[_TimedSetting] = []
    failed: str = ""


Ask = Callable[[Mapping[str, Any]], _LoaderAnswer]
"""Function that sends a request to `machine/loader_script.py` in a fresh process."""


@dataclass(frozen=True, slots=True)
class LoaderJob:
    """Training job whose loader is timed. executable: its interpreter; words: the interpreter's arguments, "train.py"
    or "-m", "package", then arguments. workspace: setting in which it runs. dataset: class of the loader's dataset, ""
    for the first loader that is asked. seconds: time after which a process counts as hung."""

    executable: str
    words: tuple[str, ...]
    workspace: Workspace
    dataset: str = ""
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """Results of one setting. name: the setting. wait: time in next() per batch, ns; batch: wait plus the training
    step, ns. first: time of the first batch, with the workers' start, ns. received: time to receive a ready batch, ns.
    samples, bytes: per batch. repeats: True if every worker yields all items, so that they repeat. failed: error
    message, or ""."""

    name: str
    workers: int
    wait: Estimate | None = None
    batch: Estimate | None = None
    first: float | None = None
    received: float | None = None
    samples: int | None = None
    bytes: int = 0
    repeats: bool = False
    failed: str = ""

    @property
    def rate(self) -> float | None:
        """Samples per second; batches per second if samples cannot be counted."""
        return (self.samples or 1) / self.batch.value * 1e9 if self.batch is not None else None


@dataclass(frozen=True, slots=True)
class LoaderBench:
    """Results of a loader's bench. own: setting in the file; settings: by workers; variants: other settings; best:
    setting with the fewest workers that is as good as any. unbatched: True for a dataset, with one sample per batch.
    usable_cpus: number on this machine. other_cpus: CPUs that other programs kept busy meanwhile. transfers: ways to
    copy a batch to the device; no_transfer: reason if they were not timed."""

    options: LoaderBenchOptions
    torch: str
    dataset: str
    usable_cpus: int
    iterable: bool
    unbatched: bool
    parts: LoaderParts | None
    own: LoaderSetting
    best: LoaderSetting
    settings: tuple[LoaderSetting, ...]
    variants: tuple[LoaderSetting, ...]
    formats: tuple[StoredSamples, ...]
    other_cpus: float
    transfers: tuple[LoaderTransfer, ...] = ()
    no_transfer: str = ""

    @property
    def under_load(self) -> bool:
        """True if other programs took so much of the machine that times are longer than necessary."""
        return self.other_cpus > BUSY_CPUS


def bench_loader(options: LoaderBenchOptions, ask: Ask, notify: Callable[[str], None]) -> LoaderBench:
    """Times a loader in fresh processes of the user's interpreter. Raises NothingMeasuredError."""
    load = OtherLoad()
    notify("timing items and collating" + ", and other formats" * options.formats)
    about = _answer(options, ask, [], parts=True)
    counts = options.workers or usual_counts(about.usable_cpus)
    settings = _timed(options, ask, [{"workers": each} for each in sorted({*counts, about.workers})], notify)
    own = next(each for each in settings if each.workers == about.workers)
    best = best_of(settings)
    if best is None:
        raise NothingMeasuredError("bench-failed", f"The loader yields no batch: {settings[0].failed}.")
    fewest = min((each.workers for each in settings if each.workers), default=1)
    variants = _timed(options, ask, options.variants(best.workers, fewest), notify)
    return LoaderBench(
        options, about.torch, about.dataset, about.usable_cpus, about.iterable, about.unbatched, about.parts, own, best,
        settings, variants, about.formats, load.since()[0],
        about.transfers, about.no_transfer,
    )  # fmt: skip


def usual_counts(cpus: int) -> tuple[int, ...]:
    """Counts of workers to try: 0 and powers of two up to twice the CPUs, since waiting workers need no CPU."""
    most = min(2 * cpus, MOST_WORKERS)
    return (0, *(2**power for power in range(most.bit_length()) if 2**power <= most))


def best_of(settings: Sequence[LoaderSetting]) -> LoaderSetting | None:
    """Setting with the fewest workers near the fastest; None if all failed. Workers that repeat items do not count."""
    timed = [each for each in settings if each.batch is not None and not each.repeats]
    shortest = min((each.batch.value for each in timed if each.batch is not None), default=0.0)
    near = [each for each in timed if each.batch is not None and each.batch.value <= shortest * (1 + PLATEAU)]
    return min(near, key=lambda each: each.workers, default=None)


def _timed(
    options: LoaderBenchOptions, ask: Ask, settings: list[dict[str, Any]], notify: Callable[[str], None]
) -> tuple[LoaderSetting, ...]:
    if not settings:
        return ()
    answers = []
    for number in range(PROCESSES):
        notify(f"timing {len(settings)} settings, process {number + 1} of {PROCESSES}")
        order = settings[::-1] if number % 2 else settings
        found = _answer(options, ask, order, parts=False).settings
        answers.append(found[::-1] if number % 2 else found)
    return tuple(_setting(each, options) for each in zip(*answers, strict=True))


def _setting(timed: Sequence[_TimedSetting], options: LoaderBenchOptions) -> LoaderSetting:
    one = timed[0]
    parts = [
        f"num_workers={one.workers}",
        f"batch_size={one.batch_size}" if one.batch_size else "",
        f"prefetch_factor={one.prefetch_factor}" if one.prefetch_factor else "",
        f"multiprocessing_context={one.context}" if one.context else "",
        f"{one.sharing} sharing" if one.sharing else "",
        "pin_memory=True" if one.pin_memory else "",
        "items kept in memory" if one.kept else "",
    ]
    name, workers = ", ".join(filter(None, parts)), one.workers or 0
    failed = next((each.failed for each in timed if each.failed), "")
    if failed:
        return LoaderSetting(name, workers, failed=failed)
    wait = over_processes([np.array(each.waits) for each in timed])
    step = options.step
    batch = replace(wait, value=wait.value + step, low=wait.low + step, high=wait.high + step)
    ready = [each.received_ns for each in timed if each.received_ns is not None]
    return LoaderSetting(
        name, workers, wait, batch,
        first=float(np.median([each.first_ns for each in timed])),
        received=float(np.median(ready)) if ready else None,
        samples=one.samples, bytes=one.bytes, repeats=any(each.repeats for each in timed),
    )  # fmt: skip


def of_place(executable: str) -> Ask:
    """Function that sends requests (`Ask`) about the loader of a place, to a fresh process of an interpreter."""
    return lambda request: answer_of(SCRIPT, request, executable, _LoaderAnswer)


def of_job(job: LoaderJob) -> Ask:
    """Function that sends requests (`Ask`) about a job's loader. Runs the job contained, as in a trial, until it asks
    for a batch."""

    def ask(request: Mapping[str, Any]) -> _LoaderAnswer:
        with tempfile.TemporaryDirectory(prefix="steptime-job-") as folder:
            answer = Path(folder) / "run" / "answer.json"
            words = json.dumps({**request, "job": job.words, "dataset": job.dataset, "answer": str(answer)})
            own = Path(folder) / "workspace"
            workspace = replace(job.workspace, command=(job.executable, str(SCRIPT), words), folder=own)
            try:
                with contained(workspace, "loader", answer.parent, deadline=job.seconds) as (command, place):
                    outcome = run_plain(command, answer.parent, (), place, lambda: False)
            finally:
                leave(workspace)
            problem = next(iter(outcome.problems), "") or last_lines(answer.parent / ERRORS).rpartition(" | ")[2]
            try:
                return msgspec.json.decode(answer.read_bytes(), type=_LoaderAnswer)
            except OSError:
                return _LoaderAnswer(failed=problem or f"the job ended with {outcome.status} and no answer")

    return ask


def _answer(options: LoaderBenchOptions, ask: Ask, settings: list[dict[str, Any]], *, parts: bool) -> _LoaderAnswer:
    answer = ask({
        "loader": options.loader, "settings": settings, "seconds": options.seconds, "step": options.step,
        "parts": parts, "cold": options.cold, "formats": parts and options.formats,
    })  # fmt: skip
    if answer.failed:
        raise NothingMeasuredError("bench-failed", f"{options.loader} cannot be timed: {answer.failed}.")
    return answer
