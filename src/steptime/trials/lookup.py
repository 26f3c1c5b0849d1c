"""The trials of a recording: folders beside it whose plan names it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from steptime.trials.results import NAME

MOST_FOLDERS = 2000
"""That are looked into: `runs` of a long project."""


def is_trial(folder: Path) -> bool:
    """Whether a folder holds the results of a trial."""
    return (folder / NAME).is_file()


def newest_trial(recording: Path) -> Path | None:
    """The folder of the newest trial of a recording that tried remedies, else of its newest lab; None without any."""
    place = recording.resolve()
    try:
        beside = sorted(each for each in place.parent.iterdir() if is_trial(each))[-MOST_FOLDERS:]
    except OSError:
        return None
    own = [(folder, plan) for folder in beside if (plan := _plan(folder)) is not None and plan.of(place)]
    ranked = sorted(own, key=lambda each: (each[1].remedies, (each[0] / NAME).stat().st_mtime_ns))
    return ranked[-1][0] if ranked else None


class _Arm(msgspec.Struct):
    proposal: str = ""


class _Plan(msgspec.Struct):
    recording: str
    arms: tuple[_Arm, ...] = ()

    def of(self, recording: Path) -> bool:
        return Path(self.recording).resolve() == recording

    @property
    def remedies(self) -> bool:
        return any(arm.proposal for arm in self.arms)


class _Line(msgspec.Struct):
    plan: _Plan


def _plan(folder: Path) -> _Plan | None:
    """The first line of the results; None where it is none."""
    try:
        with (folder / NAME).open("rb") as file:
            return msgspec.json.decode(file.readline(), type=_Line).plan
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
