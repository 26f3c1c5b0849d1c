"""What five field guides tell people to do, in our words, and the command that shows each: the source of docs/guides.md
(`.test/bin/python tests/guides.py` writes it), held against the commands by test_guides.py.

A row of guides.txt: number | what to do | command | what to look for. {name}: diagnoses that recording of
tests/data/gpu; {STnnn}, {RMnnn}: explains it; a command that starts with "-" is not there, and says what is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROWS = Path(__file__).with_name("data") / "guides.txt"
INTRO = """# What field guides ask for, and the command that shows it

Five guides to making PyTorch training fast name 170 things to do. Each has a row: the command to run in a clone of this
repository, and what to look for in its output. `train.py` is the script that `steptime new train.py` writes; names in
capitals stand for files of yours. A line through a row says what is not there.

The table is made from `tests/data/guides.txt`; `tests/test_guides.py` runs what takes seconds and holds the options of
the rest against `--help`.

| | what to do | command | look for |
| ---: | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """missing: what is not there, "" for a row that has a command."""

    number: int
    words: str
    command: str
    look: str
    missing: str


def rows() -> list[Row]:
    """All rows, in order."""
    return [
        _row(*(part.strip() for part in line.split(" | ", 3))) for line in ROWS.read_text(encoding="utf-8").splitlines()
    ]


def _row(number: str, words: str, command: str, look: str = "") -> Row:
    command = command.removesuffix(" |")
    if command.startswith("- "):
        return Row(int(number), words, "", "", re.sub(r"\{(\w+)\}", r"`steptime explain \1`", command[2:]))
    recording = re.sub(r"^\{([a-z]\w*)\}$", r"steptime diagnose tests/data/gpu/\1 -o report.md", command)
    return Row(int(number), words, re.sub(r"^\{(\w+)\}$", r"steptime explain \1", recording), look, "")


def rendered() -> str:
    """docs/guides.md."""
    return INTRO + "".join(
        f"| {row.number} | ~~{row.words}~~ | not there: {row.missing} | |\n"
        if row.missing
        else f"| {row.number} | {row.words} | `{row.command}` | {row.look.strip('| ').replace('|', '·')} |\n"
        for row in rows()
    )


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "docs" / "guides.md").write_text(rendered(), encoding="utf-8")
