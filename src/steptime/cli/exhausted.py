"""What `run` says behind a job that ended because memory ran out: what was asked for, who held what, what to do first.

The job's own traceback stands above it, as it would have without us.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from steptime.capture.outcome import Outcome
from steptime.quantities import format_bytes, format_source
from steptime.recording.load import look_into, walk
from steptime.recording.recording import LeakFacts, OutOfMemoryFacts, Process, TelemetrySample


def out_of_memory(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """Three lines, or none where the job did not end for want of memory."""
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
    asked = f"{format_bytes(facts.asked)} were asked for" if facts.asked is not None else "a request failed"
    where = f" at {format_source(facts.site)}" if facts.site is not None else ""
    limit = f" of {format_bytes(facts.limit)}" if facts.limit is not None else ""
    process_has = f"the process had {format_bytes(facts.resident)}{limit}" if facts.device == "cpu" else limit[4:]
    ranked = sorted(facts.held.items(), key=lambda entry: -entry[1])
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in ranked) or "no tensors that Python knows of"
    tail = f"; {process_has}" if process_has else ""
    return (
        f"Out of memory on {facts.device}: {asked}{where}.",
        f"Held then, as far as Python knows: {held}{tail}.",
        f"First: {_first(process, facts)} (more: steptime memory {shlex.quote(str(folder))})",
    )


def _first(process: Process, facts: OutOfMemoryFacts) -> str:
    """The cheapest thing that can help."""
    total = sum(facts.held.values())
    if facts.asked is not None and facts.limit is not None and facts.asked > facts.limit:
        where = f" at {format_source(facts.site)}" if facts.site is not None else ""
        return f"make the request{where} smaller, no memory of this machine could serve it."
    if process.leaks:
        return f"{let_go(process.leaks[0])}."
    if facts.held.get("optimiser state", 0) > total / 2:
        return "use an optimiser with less state (8-bit, or without momentum), or shard it over ranks."
    return "halve the batch and accumulate two of them, or checkpoint activations."


def let_go(leak: LeakFacts) -> str:
    """What to do about a leak, in words."""
    where = f" at {format_source(leak.site)}" if leak.site is not None else ""
    if leak.graphs or leak.nodes:
        return f"keep {leak.name or 'it'}{where} without its graph (.detach() or .item()): it grows with every step"
    return f"let go of what {leak.name or leak.kind or 'something'} keeps{where}: it grows with every step"


def _of_kill(
    itself: bool, samples: Sequence[TelemetrySample], leaks: Sequence[LeakFacts], folder: Path
) -> tuple[str, ...]:
    """itself: the job ended by that signal; else a launcher or a loader told of a process of theirs, as a rule."""
    most = max((sample.resident_bytes for sample in samples), default=0)
    had = f" It had {format_bytes(most)} at the last look." if most else ""
    first = let_go(leaks[0]) if leaks else "use a smaller batch, fewer loader workers, or more memory"
    killed = "The job was killed by the kernel" if itself else "The kernel killed a process while the job ran"
    return (
        f"{killed}: memory ran out on the machine or in its container.{had}",
        "Held then: not known, the kernel leaves no time to look.",
        f"First: {first} (more: steptime memory {shlex.quote(str(folder))})",
    )
