"""Reports with a timeline that can be told from a picture: few events, at round times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.quantities import SourceLine
from steptime.report.report import Report
from steptime.report.step_view import Detail, Label, StepView, Strip, assemble, text
from steptime.report.steps import StepMark, StepSeries
from steptime.report.trials import Curve, TrialReport, Tried

MS = 1_000_000
LINE = SourceLine("/home/ada/train.py", 90, "main", "loss.backward()")
Event = tuple[float, float, str, str, Detail]


def strip(name: str, kind: str, events: list[Event]) -> Strip:
    """Events as (start ms, end ms, name, kind, detail)."""
    start = np.array([each[0] * MS for each in events], np.int64)
    end = np.array([each[1] * MS for each in events], np.int64)
    numbers = np.arange(len(events), dtype=np.int64)
    labels = tuple(Label(text(each[2]), each[3]) for each in events)
    return Strip(name, kind, start, end, numbers, labels, numbers, tuple(each[4] for each in events))


def step_view(names: tuple[str, ...] = ()) -> StepView:
    """A step of 100 ms: 40 of input, 60 of computing. names: of further events on a thread of their own."""
    category: list[Event] = [
        (0, 40, "input", "input", Detail(note="behind it: enumerate(DataLoader)")),
        (40, 100, "compute", "compute", Detail()),
    ]
    stream: list[Event] = [
        (40, 80, "gemm", "compute", Detail("aten::mm", "[[64, 64]]", '["float"]', LINE)),
        (80, 100, "relu", "compute", Detail("aten::relu", "[[64, 64]]")),
    ]
    host: list[Event] = [
        (0, 95, "ProfilerStep#3", "range", Detail()),
        (38, 60, "aten::mm", "operator", Detail(shapes="[[64, 64]]", source=LINE)),
        (39, 41, "cudaLaunchKernel", "call", Detail(operator="aten::mm")),
    ]
    strips = [strip("Where the time goes", "category", category), strip("stream 7", "stream", stream),
              strip("Training thread 10", "thread", host)]  # fmt: skip
    if names:
        width = 100 / len(names)
        strips.append(
            strip("Thread 11", "thread", [(at * width, (at + 1) * width, name, "operator", Detail(name, name, name,
                  replace(LINE, text=name), name)) for at, name in enumerate(names)])
        )  # fmt: skip
    return assemble(strips, (0, 100 * MS), (0, 100 * MS), 5, "of 6 steady steps the one next to their median")


def with_timeline(report: Report, names: tuple[str, ...] = ()) -> Report:
    """The report with single steps: step 5 as a timeline, 7 far out, 9 with an evaluation in it."""
    process = report.processes[0]
    spent = [96 * MS] * 20
    spent[7], spent[9], spent[0] = 180 * MS, 99 * MS, 150 * MS
    kinds = [1] * 20
    kinds[0], kinds[7], kinds[9] = 0, 2, 3
    known = [kind in (1, 2) for kind in kinds]
    categories = tuple((ns // 4, ns - ns // 4) if reported else () for ns, reported in zip(spent, known, strict=True))
    series = StepSeries(
        names=("warm-up", "steady", "outlier", "with evaluation"),
        kinds=tuple(kinds),
        categories=("compute", "input"),
        stride=1,
        spent=categories,
        marks=(StepMark(9, "evaluation", 2_000 * MS),),
    )
    process = replace(process, step_ns=tuple(spent), steady=tuple(known), series=series, step_view=step_view(names))
    return replace(report, processes=(process,))


def tried(speed: tuple[float, float, float] | None, verdict: str, **more: object) -> Tried:
    """A variant. speed: value, low, high."""
    from steptime.quantities import Estimate

    about = Estimate(*speed, 4, "1") if speed is not None else None
    base = Tried(
        "RM101", "num_workers=2", "RM101", 0, verdict, "Losses are equal, bit for bit", "the same losses, bit for bit",
        True, "equal losses", about, Estimate(1.9, 1.5, 1.9, 3, "1"), 1.05, 50.0 * MS, 110 << 20, 4,
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def with_trials(report: Report) -> Report:
    """The report with a trial: one variant that is adopted, one whose promise broke, one that failed."""
    variants = (
        tried((2.0, 1.8, 2.2), "adopt"),
        tried((1.3, 1.2, 1.4), "broke its promise", name="RM301", label="bfloat16", proposal="RM301", kept=False),
        tried(None, "failed", name="RM401", label="compile", proposal="RM401", kept=None, peak_bytes=None),
    )
    curves = (
        Curve("baseline", 0, 1, (1.0, 0.8, 0.6, None, 0.4)),
        Curve("baseline", 1, 1, (1.1, 0.7, 0.65, 0.5, 0.45)),
        Curve("RM101", 0, 1, (1.0, 0.8, 0.6, 0.5, 0.4)),
    )
    known = (12, 130.0, 100.0 * MS, 100 << 20)
    changed = ("-    loader = DataLoader(data)", "+    loader = DataLoader(data, num_workers=2)")
    diff = "\n".join(("--- a/train.py", "+++ b/train.py", "@@ -8 +8 @@", *changed, ""))
    trials = TrialReport("runs/train-try", "python train.py", *known, variants, curves, diff, "git apply patch.diff")
    return replace(report, trials=trials)
