# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportAny=false
"""A user's script that uses every public name. It is type-checked (`make lint`), never run.

Where it is wrong on purpose, the checker must say so: an ignored line without an error is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import steptime
from steptime.api import Benched, Loaded, LoadedComparison, LoadedMemory, LoadedReport, LoadedTrial
from steptime.in_process import OwnRecording

version: str = steptime.__version__


def written(name: str, value: float, step: int) -> None:
    print(name, value, step)


def of_reports(first: LoadedReport, second: LoadedReport) -> LoadedComparison:
    columns: dict[str, list[float | str | None]] = first.to_dict("findings")
    print(columns, first.tables, first.of_rank(0), str(first))
    return first.compare(second)


def of_others(trial: LoadedTrial, memory: LoadedMemory) -> list[Loaded]:
    return [trial.report, trial, memory]


def recorded(folder: Path) -> OwnRecording:
    with steptime.record(folder, profile=False) as recording:
        print(recording.folder)
    steptime.log_to(written, every=2.0, step=lambda: 3)
    recording.stop()
    steptime.record(profil=False)  # pyright: ignore[reportCallIssue]
    return recording


def timed(slow: Callable[[int], int], fast: Callable[[int], int]) -> Benched:
    print(steptime.bench(slow, shapes=3))  # pyright: ignore[reportArgumentType]
    return steptime.bench(slow, fast, inputs=(3,), dtypes=["float32"], backward=False, seconds=0.5)


report: LoadedReport = steptime.load("runs/train")
callbacks: list[object] = [
    steptime.callbacks.Lightning(every=5.0),
    steptime.callbacks.HuggingFace(Path("runs/mine")),
    steptime.callbacks.Accelerate(),
    steptime.callbacks.Keras(),
]
print(steptime.nothing_of_that_name)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
