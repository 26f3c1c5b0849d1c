"""A number that a script prints, by which it is judged where it has no training steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from steptime.trials.trial import Run

LAST_BYTES = 4 << 20
"""Of an output that are searched: the last match counts."""


def end_of(path: Path, most: int) -> str:
    """The last bytes of a file as text. Raises OSError."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - most))
        return file.read().decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Metric:
    """pattern: a regular expression, whose first group is the number. The last match counts."""

    pattern: str
    lower_is_better: bool = False

    def read(self, output: Path) -> tuple[float | None, str]:
        """(the number in a file, ""), or (None, why there is none that can be compared)."""
        try:
            text = end_of(output, LAST_BYTES)
        except OSError as error:
            return None, f"Its output cannot be read: {error}"
        found = [each[1] for each in re.finditer(self.pattern, text, re.MULTILINE) if each[1]]
        if not found:
            return None, f"It printed nothing to its standard output that --metric {self.pattern!r} matches"
        try:
            value = float(found[-1])
        except ValueError:
            return None, f"What --metric {self.pattern!r} finds in its output is no number: {found[-1]!r}"
        if not isfinite(value) or value <= 0:
            return None, f"It printed {found[-1].strip()}, and only numbers above zero have a ratio"
        return value, ""

    def cost(self, run: Run) -> tuple[float, ...]:
        """What is better the smaller it is."""
        if run.metric is None:
            return ()
        return (run.metric if self.lower_is_better else 1 / run.metric,)
