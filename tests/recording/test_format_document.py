"""docs/recording-format.md names everything that a recording holds, but for the facts, whose table is made."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from steptime.journal import FORMAT_VERSION, RECORD, Flag, Kind
from steptime.quantities import SourceLine
from steptime.recording import recording
from steptime.recording.packed import LAYOUT
from steptime.recording.parity import Parity

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recording-format.md").read_text(encoding="utf-8")
TYPES = (
    recording.Manifest,
    recording.ProcessFacts,
    recording.TelemetrySample,
    recording.DeviceSample,
    Parity,
    SourceLine,
)


def test_the_version() -> None:
    assert f"Version **{FORMAT_VERSION}**" in PAGE


def test_the_record() -> None:
    rows = re.findall(r"^\| \d[\d–]* \| (u?int\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    assert [name for _, name in rows] == list(LAYOUT.names or ())
    assert [kind for kind, _ in rows] == [str(LAYOUT[name]) for name in LAYOUT.names or ()]
    assert LAYOUT.itemsize == RECORD.size == 24


def test_every_kind_with_its_number() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert {(int(number), name) for number, name in rows} == {(kind.value, kind.name) for kind in Kind}


def test_every_flag_with_its_bit() -> None:
    rows = re.findall(r"^\| `\w+` \| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert {(name, int(bit)) for bit, name in rows} == {(name, flag.value) for name, flag in Flag.__members__.items()}


def test_the_site_has_a_table_of_all_facts_from_their_declarations() -> None:
    assert "\n<!-- facts -->\n" in PAGE
    table = runpy.run_path(str(ROOT / ".ci" / "fact_tables.py"))["fact_tables"]()
    assert {fact.name for fact in recording.FACTS} <= set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert "| `loss` | the last | `divided` bool | Scaling of the first losses" in table
    assert "| `code` | the last of each `base` | `base` int, `file` str" in table
    assert "| CodeLine | `line` int, `text` str, `stores` list of str" in table, "objects within facts, too"


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field(kind: type) -> None:
    missing = [each.name for each in fields(kind) if f"`{each.name}`" not in PAGE]
    assert missing == []
