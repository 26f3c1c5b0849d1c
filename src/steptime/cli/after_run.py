"""Work of verbs between the end of a job and its diagnosis: why it failed or was not measured, and the machine's peaks.

After a job that ran out of memory, three lines follow its traceback: what was requested, what held the memory, and what
to do first."""

from __future__ import annotations

import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from steptime.cli.exit_codes import say
from steptime.errors import NothingMeasuredError, SteptimeError
from steptime.launcher.outcome import Outcome
from steptime.machine import between_runs
from steptime.machine.link import link_of
from steptime.machine.machine import Link
from steptime.machine.peaks import FILE_NAME, peaks, remembered, store
from steptime.quantities import SourceLine, format_bytes, format_count
from steptime.recording.load import facts_of, look_into, walk
from steptime.recording.recording import LeakFacts, OutOfMemoryFacts, Process, TelemetrySample
from steptime.report.report import Report
from steptime.report.sentences import place_text

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals of a program's own fault. A shell or a launcher passes them on as a status above 128."""


def crashed_after_profile(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """Sentence, in a tuple, on a job that crashed after a trace of it was started; () for any other end."""
    found = next((crash for crash in CRASHES if outcome.status == 128 + crash), None)
    if found is None or not any(folder.glob("process-*/trace-*")):
        return ()
    return (
        f"The job crashed with {found.name} after torch's profiler had recorded some of its steps. To rule the "
        "profiler out, run it again with --no-profile. (crashed-after-profile)",
    )


def out_of_memory(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """Three lines on a job that ran out of memory; () for any other end."""
    if outcome.signal is None and outcome.status == 0:
        return ()
    leaks: list[LeakFacts] = []
    for process in walk(folder) if outcome.steps_seen else ():
        if process.out_of_memory is not None:
            return _of_error(process, process.out_of_memory, folder)
        leaks += process.leaks[:1]
    if not outcome.killed_for_memory:
        return ()
    samples = look_into(folder).telemetry if outcome.steps_seen else ()
    return _of_kill(outcome.status == 128 + signal.SIGKILL, samples, leaks, folder)


def _of_error(process: Process, facts: OutOfMemoryFacts, folder: Path) -> tuple[str, ...]:
    asked = f"allocating {format_bytes(facts.asked)} failed" if facts.asked is not None else "an allocation failed"
    limit = f" of {format_bytes(facts.limit)}" if facts.limit is not None else ""
    process_has = f"the process had {format_bytes(facts.resident)}{limit}" if facts.device == "cpu" else limit[4:]
    ranked = sorted(facts.held.items(), key=lambda entry: -entry[1])
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in ranked) or "no tensors visible from Python"
    tail = f"; {process_has}" if process_has else ""
    return (
        f"Out of memory on {facts.device}: {asked}{_at(facts.site)}.",
        f"Held at that moment, as visible from Python: {held}{tail}.",
        f"First: {_first(process, facts)} (more: steptime memory {shlex.quote(str(folder))})",
    )


def _at(site: SourceLine | None) -> str:
    return f" at {place_text(site)}" if site is not None else ""


def _first(process: Process, facts: OutOfMemoryFacts) -> str:
    """Cheapest measure that can help."""
    if facts.asked is not None and facts.limit is not None and facts.asked > facts.limit:
        return f"make the allocation{_at(facts.site)} smaller; it exceeds all memory of this machine."
    if process.leaks:
        return f"{_let_go(process.leaks[0])}."
    if facts.held.get("optimizer state", 0) > sum(facts.held.values()) / 2:
        return "use an optimizer with less state (8-bit, or without momentum), or shard its state over ranks."
    return "halve the batch size with two gradient accumulation steps, or checkpoint activations."


def _let_go(leak: LeakFacts) -> str:
    if leak.graphs or leak.nodes:
        what = f"keep {leak.name or 'it'}{_at(leak.site)} without its graph (.detach() or .item())"
    else:
        what = f"release what {leak.name or leak.kind or 'something'} holds{_at(leak.site)}"
    return f"{what}: it grows with every step"


def _of_kill(
    itself: bool, samples: Sequence[TelemetrySample], leaks: Sequence[LeakFacts], folder: Path
) -> tuple[str, ...]:
    """Three lines on a process that the kernel killed. itself: True if it was the job; else a launcher or a loader
    usually reported one of its processes."""
    most = max((sample.resident_bytes for sample in samples), default=0)
    had = f" It had {format_bytes(most)} at the last sample." if most else ""
    first = _let_go(leaks[0]) if leaks else "use a smaller batch, fewer loader workers, or more memory"
    killed = "Linux killed the job" if itself else "Linux killed a process while the job ran"
    return (
        f"{killed}: the machine or its container ran out of memory.{had}",
        "Held at that moment: unknown; the kernel leaves no time to look.",
        f"First: {first} (more: steptime memory {shlex.quote(str(folder))})",
    )


MOST_EVENTS = 12
"""Most events of the compiler that are listed one by one: as many as fit on a screen with the report."""


def compiled_text(report: Report) -> Iterator[str]:
    """Lines on torch.compile's work, one per event, most frequent first."""
    reported = [each.case.compiler for each in report.processes if each.case.compiler is not None]
    if not reported:
        return
    kinds = {
        "graph break": reported[0].breaks,
        "recompiled after a failed guard": reported[0].recompilations,
        "recompile limit reached, eager since then": reported[0].limits,
    }
    events = [(kind, event) for kind, found in kinds.items() for event in found]
    for kind, event in sorted(events, key=lambda each: -each[1].count)[:MOST_EVENTS]:
        yield f"{kind}, {format_count(event.count, 'time')}: {place_text(event.source)}, {event.reason}"
    if len(events) > MOST_EVENTS:
        yield f"and {len(events) - MOST_EVENTS} more: -o report.md lists all"
    if not events:
        yield "torch.compile broke no graph, and no guard failed"


def nothing_measured(outcome: Outcome, folder: Path) -> NothingMeasuredError | None:
    """Reason why there is nothing to report; None if a process trained."""
    if outcome.steps_seen:
        return None
    if outcome.signal:
        names = {each.value: each.name for each in signal.Signals}  # those between SIGRTMIN and SIGRTMAX have none
        name = names.get(outcome.signal, "real-time")
        return NothingMeasuredError(
            "killed-early",
            f"Signal {outcome.signal} ({name}) ended the job before its first training step. Nothing was "
            "measured; the job's own output may say why.",
        )
    failed, ended = outcome.status != 0, f"with status {outcome.status}"
    if not outcome.python_seen:
        return NothingMeasuredError(
            "no-python",
            f"The job ended {ended}, and steptime could not enter any Python process of it. Does it reset "
            "PYTHONPATH, or run python -I, -E or -S? If so, install steptime in the job's environment.",
        )
    if not outcome.torch_seen:
        advice = "its own output may say why" if failed else "give the command that trains, such as python train.py"
        return NothingMeasuredError("no-torch", f"The job ended {ended} and never imported torch: {advice}.")
    advice = "its own output may say why" if failed else "let it run until it trains, or check that it trains at all"
    return NothingMeasuredError(
        "no-steps",
        f"The job ended {ended}. It imported torch but took no training step: {advice}. The recording is in {folder}.",
    )


def made_since(report: Report, start: int) -> Report:
    """Report whose cost includes the time of making it since `start` (time.perf_counter_ns), without that of the peaks,
    which are reported apart."""
    took = time.perf_counter_ns() - start
    processes = []
    for process in report.processes:
        if (cost := process.cost) is not None:
            process = replace(process, cost=replace(cost, after_ns=cost.after_ns + max(0, took - cost.peaks_ns)))
        processes.append(process)
    return replace(report, processes=tuple(processes))


def measure_peaks(folder: Path, *, quiet: bool, only_known: bool = False) -> None:
    """Stores this machine's peaks in the recording. If they are not known yet, the job's own interpreter measures them,
    unless `only_known`. A failure or Ctrl-C is reported, and the diagnosis continues without peaks."""
    trainer = next(walk(folder), None)
    if trainer is None:
        return
    notify = (lambda _: None) if quiet else say
    facts, settings = trainer.facts, trainer.settings
    device = facts.device.partition(":")[0]
    threads = settings.intra_op_threads if settings is not None and device == "cpu" else None
    start, spent = time.perf_counter_ns(), 0
    try:
        machine = remembered(device, facts.torch, threads=threads, name=facts.device_name)
        if machine is None and only_known:
            return
        if machine is None:
            notify("benchmarking this machine (2 s, once; --no-peaks skips it)")
            name = facts.device_name
            machine = peaks(facts.executable, device, facts.torch, threads=threads, name=name, brief=True)
            if machine.under_load:
                notify(
                    "other processes used this machine meanwhile: the peaks are lower bounds, until a run that ends "
                    "on an idle machine or steptime env measures them again"
                )
            spent = time.perf_counter_ns() - start
        known = between_runs.remembered(device, facts.torch)
        link = _link(trainer, folder, notify) if not only_known else None
        machine = replace(machine, link=link, between_runs=known, spent_ns=spent)
        store(machine, folder / FILE_NAME)
    except KeyboardInterrupt:
        say("interrupted: this machine's peaks are not measured; the diagnosis of the job follows")
    except SteptimeError as error:
        say(str(error))
    except OSError as error:
        say(f"The peaks of this machine could not be written to {folder} ({error.strerror}).")


def _link(trainer: Process, folder: Path, notify: Callable[[str], None]) -> Link | None:
    """Link between as many processes as the job had ranks on the trainer's host; None unless that is this one."""
    facts, settings = trainer.facts, trainer.settings
    if settings is None or settings.distributed_backend is None or facts.host != socket.gethostname():
        return None
    ranks = len({each.rank for each in facts_of(folder) if each.rank is not None and each.host == facts.host})
    device = facts.device.partition(":")[0]
    return link_of(facts.executable, device, settings.distributed_backend, ranks, facts.torch, notify)
