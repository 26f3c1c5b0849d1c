"""Modules in the breakdown: by the calls that a trace with stacks names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from documents import html_of, json_of, markdown_of, text_of
from memory.allocator import BATCH, TRAIN, Allocator, frame, train, triage_of

from steptime.memory.answer import answer_of
from steptime.memory.owners import Owner
from steptime.memory.report import MemoryReport
from steptime.memory.triage import MemoryTriage


def called(*modules: str) -> list[dict[str, object]]:
    """A stack as a trace gives it: innermost first, the calls of modules as functions without a file."""
    return [frame("", 0, f"nn.Module: {name}") for name in reversed(modules)] + [TRAIN]


def triaged(folder: Path) -> MemoryTriage:
    allocator = Allocator()
    for size, modules in ((300, ("Net_0", "Linear_0")), (200, ("Net_0", "Linear_0")), (100, ("Net_0", "Linear_1"))):
        allocator.malloc(size, called(*modules))
    allocator.malloc(5_000, BATCH)
    return triage_of(allocator, folder)


def test_what_modules_made_is_summed_by_the_path_of_their_calls(tmp_path: Path) -> None:
    modules = triaged(tmp_path).breakdown.modules
    assert [(use.path, use.bytes, use.blocks) for use in modules] == [
        ("Net_0/Linear_0", 500, 2),
        ("Net_0/Linear_1", 100, 1),
    ]
    assert len({use.owner for use in modules}) == 1


def test_modules_of_one_class_in_one_module_are_the_blocks_to_checkpoint(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 1)
    kept = [
        allocator.malloc(1_000_000, called("Net_0", f"Block_{block}", *inner))
        for block in range(6)
        for inner in ((), (), ("Linear_0",), ("Linear_1",))
    ]
    for each in kept:
        allocator.free(each, [])
    train(allocator, 1)
    saving = next(each for each in triage_of(allocator, tmp_path).savings if "checkpointing" in each.name)
    assert saving.name == "activation checkpointing of the 6 Block modules in Net_0"
    assert saving.frees == 24_000_000 * 5 // 6 - 6_000_000


def test_written_reports_have_them_with_the_names_of_their_owners(tmp_path: Path) -> None:
    found = triaged(tmp_path)
    report = MemoryReport("memory.json", (found,))
    markdown = markdown_of(report, answer_of)
    assert "## Modules" in markdown
    assert re.search(r"\| 500 B \| \w+ \| Net_0/Linear_0 \| 2 \|", markdown)
    plain = json.loads(json_of(report, answer_of))["devices"][0]["breakdown"]["modules"]
    assert [each["path"] for each in plain] == ["Net_0/Linear_0", "Net_0/Linear_1"]
    assert {each["owner"] for each in plain} <= {"activations", "inputs", "temporaries", "kept across steps"}
    assert "Net_0/Linear_1" in html_of(report, answer_of)
    assert re.search(r"500 B +\w+ +Net_0/Linear_0", text_of(report, answer_of))


def test_snapshots_that_name_no_module_have_no_table_of_them(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 3)
    found = triage_of(allocator, tmp_path)
    assert found.breakdown.of(Owner.ACTIVATIONS)
    assert found.breakdown.modules == ()
    assert "## Modules" not in markdown_of(MemoryReport("snapshot.pickle", (found,)), answer_of)
