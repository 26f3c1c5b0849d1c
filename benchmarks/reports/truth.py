"""Cases: public reports, re-enacted small, with the cause that their owners found.

A case is a folder of `cases/`: `train.py`, the job as it was reported; `fixed.py`, the same job with the owners' fix,
its twin; and `truth.toml`. Lines of train.py that end in `# culprit` or `# culprit-too` are right places. The markers
are taken out before a tool sees the job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

CASES = Path(__file__).parent / "cases"
MARKER = re.compile(r"\s*# culprit(-too)?\s*$")
JOB, TWIN = "train.py", "fixed.py"
KINDS = (
    "grows", "computed-again", "thrown-away", "too-often", "slow-way", "input", "sync", "memory", "other",
)  # fmt: skip

Patterns = tuple[tuple[str, ...], ...]
"""Regular expressions: one of each inner tuple has to be found."""


@dataclass(frozen=True)
class Truth:
    """batch: who wrote the case (`seen`: looked at before its first score; `own`: by whoever mends rules; `blind`: by
    somebody who does not look at them). source: addresses of the reports. words: of the right cause; advice: of an
    advice that removes it. share: fraction of a step that the fix saves, as its author measured it. false: regular
    expressions that no finding about the twin may contain."""

    name: str
    batch: str
    source: tuple[str, ...]
    kind: str
    cause: str
    words: Patterns
    advice: Patterns
    share: float
    false: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return CASES / self.name

    @property
    def lines(self) -> frozenset[int]:
        """Numbers of the marked lines of train.py."""
        return frozenset(number for number, line in enumerate(self._job(), 1) if MARKER.search(line))

    @property
    def culprits(self) -> frozenset[str]:
        """Texts of the lines that are marked as the culprit itself, without the marker."""
        return frozenset(_plain(line) for line in self._job() if line.rstrip().endswith("# culprit"))

    def script(self, name: str) -> str:
        """A script of the case as a tool may see it: without markers, with the same line numbers."""
        lines = (self.folder / name).read_text(encoding="utf-8").splitlines()
        return "\n".join(MARKER.sub("", line) for line in lines) + "\n"

    def _job(self) -> list[str]:
        return (self.folder / JOB).read_text(encoding="utf-8").splitlines()


def has_all(text: str, patterns: Patterns) -> bool:
    """Whether one expression of each inner tuple is in a text, whatever the case of letters."""
    return all(any(re.search(each, text, re.IGNORECASE) for each in choice) for choice in patterns)


def cases(names: Sequence[str] = (), batch: str = "") -> list[Truth]:
    """The cases in the order of their names; of some names or one batch only. Raises ValueError for an unknown name."""
    found = {path.parent.name: path for path in sorted(CASES.glob("*/truth.toml"))}
    unknown = sorted(set(names) - set(found))
    if unknown:
        raise ValueError(f"no case {', '.join(unknown)}; there are {', '.join(found)}")
    read = [_truth(name, msgspec.toml.decode(path.read_bytes())) for name, path in found.items()]
    return [each for each in read if (not names or each.name in names) and batch in ("", each.batch)]


def _truth(name: str, written: dict[str, Any]) -> Truth:
    kind = written["kind"]
    if kind not in KINDS:
        raise ValueError(f"{name}: kind {kind!r}, expected one of {', '.join(KINDS)}")
    source, twin = written["source"], written.get("twin", ())
    return Truth(
        name=name,
        batch=written.get("batch", "blind"),
        source=(source,) if isinstance(source, str) else tuple(source),
        kind=kind,
        cause=written["cause"],
        words=_patterns(written["words"]),
        advice=_patterns(written["advice"]),
        share=float(written["share"]),
        false=tuple(twin) if isinstance(twin, list) else (),
    )


def _patterns(written: str | list[Any]) -> Patterns:
    """A single expression stands for itself, a list of expressions for as many that all have to be found."""
    if isinstance(written, str):
        return ((written,),)
    return tuple((each,) if isinstance(each, str) else tuple(each) for each in written)


def _plain(line: str) -> str:
    return MARKER.sub("", line).strip()


__all__ = ["CASES", "JOB", "KINDS", "TWIN", "Truth", "cases", "has_all"]
