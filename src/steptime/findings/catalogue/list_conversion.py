"""ST206: a tensor is made of lists."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.line_kinds import converts_lists
from steptime.findings.line_time import LineTime, line_times
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio
from steptime.quantities import format_duration, format_share, format_source

LEAST_DURATION = 200_000.0
"""ns per execution: a conversion of one array of some MB is done by then (a copy at several GB/s)."""


@rule(
    "ST206",
    "list-conversion",
    needs={Signal.STEP, Signal.LINES},
    uses={Signal.PHASES},
    instead_of=("host-time", "batch-preparation", "metrics-in-step"),
    by_line=True,
)
def list_conversion(signals: Signals) -> Iterator[Finding]:
    """A tensor is made of lists or of a list of arrays

    What it means
        torch.tensor(list) reads every element as a Python object; given a list of NumPy arrays it does so too, and is
        some hundred times slower than a copy.

    How we know
        The lines of the loop are timed exactly; the line calls torch.tensor (or a tensor type) on what is, by its
        text, not one NumPy array, and takes longer than copying an array would.

    What helps
        torch.from_numpy(np.stack(arrays)) for a list of arrays; keep the data as one array from the start and index it.

    When to ignore it
        When the argument is one large array and the time is that of its copy: then torch.from_numpy saves the copy.
    """
    for time in line_times(signals.lines, signals.phases):
        line = time.line
        slow = time.duration.value >= LEAST_DURATION * max(line.hits, 1.0)
        if slow and line.role != "evaluation" and converts_lists(line.source.text):
            yield _line(signals, time)


def _line(signals: Signals, time: LineTime) -> Finding:
    line = time.line
    share = format_share(ratio(time.duration.value, signals.step.duration.value))
    summary = (
        f"{format_source(line.source)} makes a tensor of lists: {format_duration(time.duration.value)} a step ({share})"
    )
    account = "input" if line.role == "input" else ""
    return list_conversion.finding(
        summary,
        "Use torch.from_numpy(np.stack(arrays)), or keep the data as one array.",
        time.duration,
        account=account,
        source=line.source,
        evidence=(line.source.text,),
    )
