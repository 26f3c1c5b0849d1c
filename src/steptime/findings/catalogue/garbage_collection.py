"""ST202: Python's garbage collector runs inside the step."""

from __future__ import annotations

from steptime.findings.case import LineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.line_kinds import LineKind, line_kind
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio
from steptime.quantities import format_duration, format_share


@rule(
    "ST202",
    "garbage-collection",
    needs={Signal.STEP, Signal.GARBAGE},
    uses={Signal.LINES},
    instead_of=("host-time", "launch-bound"),
)
def garbage_collection(signals: Signals) -> Finding:
    """Python's garbage collector runs inside the step

    What it means
        A collection walks every container object of the process. With millions of objects alive (a list of samples, a
        vocabulary, a graph of Python objects) each one takes tens of milliseconds, at moments that nothing in the
        loop shows.

    How we know
        Python calls back at the begin and end of each collection; those in the training thread are timed.

    What helps
        gc.freeze() after set-up takes the long-lived objects out of every later collection; keep data in arrays instead
        of lists of objects; or gc.disable() and a gc.collect() every few hundred steps. A gc.collect() that stands in
        the loop can nearly always go: tensors are freed by reference counts.

    When to ignore it
        When cycles hold large tensors and memory is short: then the collector is what frees them.
    """
    garbage, step = signals.garbage, signals.step
    lines = [line for line in signals.lines if line.garbage > 0 and line.role != "evaluation"]
    line = max(lines, key=_collections, default=None)
    share = format_share(ratio(garbage.duration.value, step.duration.value))
    summary = (
        f"The garbage collector takes {format_duration(garbage.duration.value)} a step ({share}), "
        f"{garbage.collections:.2g} collections a step"
    )
    return garbage_collection.finding(
        summary, _advice(line), garbage.duration, account=garbage.account, source=line.source if line else None
    )


def _collections(line: LineUse) -> float:
    return line.garbage


def _advice(line: LineUse | None) -> str:
    if line is not None and line_kind(line.source.text) is LineKind.COLLECT:
        return "Take gc.collect() out of the loop: tensors are freed by their reference counts."
    return "Call gc.freeze() once before the loop, or keep long-lived data in arrays instead of Python objects."
