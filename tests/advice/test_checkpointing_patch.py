"""Activation checkpointing as a patch: the loop over a model's blocks, and what is computed again because of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY, MS, line, optimizer
from probe.variants import JOBS, change, run

from steptime.advice.evidence import Case, TopModuleUse
from steptime.advice.explain import find_fix
from steptime.advice.fix import ModelEdit, Snippet
from steptime.advice.fixes.switches import _holders
from steptime.advice.run_uses import MemoryUse
from steptime.analysis.lines import LineRoleName
from steptime.analysis.modules import ModuleUse
from steptime.quantities import SourceLine
from steptime.trials.patch import make_patch

pytest.importorskip("torch")

BLOCKS = ("Net", "Net.head", *(f"Net.blocks.{number}" for number in range(3)),
          *(f"Net.blocks.{number}.{part}" for number in range(3) for part in ("wide", "drop", "narrow")))  # fmt: skip


def modules(paths: Sequence[str], other: str = "") -> tuple[ModuleUse, ...]:
    """other: a path whose class is another one."""
    return tuple(
        ModuleUse(each, "Other" if each == other else "Block", each.count("."), 1.0, MS, MS, 0.1) for each in paths
    )


def at(file: Path, text: str) -> SourceLine:
    lines = file.read_text().splitlines()
    (number,) = (number for number, each in enumerate(lines, 1) if text in each)
    return SourceLine(str(file), number, "<module>", lines[number - 1].strip())


def full(file: Path, known: tuple[ModuleUse, ...]) -> Case:
    """A recording of the job on a machine whose memory is nearly full."""
    timed: tuple[tuple[LineRoleName, str], ...] = (
        ("forward", "loss = net("), ("backward", "scaler.scale(loss).backward()")
    )  # fmt: skip
    return replace(
        HEALTHY,
        memory=MemoryUse("cpu", 95 << 20, 100 << 20),
        lines=tuple(replace(line(text, MS, role=role), source=at(file, text)) for role, text in timed),
        optimizers=(replace(optimizer(MS, type="SGD"), site=at(file, "optimizer = ")),),
        top_modules=(TopModuleUse("Net", 14, 4000),),
        modules=known,
    )


def test_the_patch_computes_again_what_the_change_did(tmp_path: Path) -> None:
    file = Path(shutil.copy(JOBS / "blocks.py", tmp_path / "blocks.py"))
    fix = find_fix("RM601")
    assert fix is not None
    (option,) = fix(full(file, modules(BLOCKS)))
    assert isinstance(option.edit, ModelEdit)
    plain, changed = run(tmp_path, file), run(tmp_path, file, change("checkpointing"))
    patch = make_patch((option.edit,), tmp_path, Path("blocks.py"))
    assert patch.snippets == ()
    new = patch.files[0][2]
    assert "import functools\nimport json\n" in new
    assert "for block in net.blocks:\n    block.forward = functools.partial(torch.utils.checkpoint" in new
    file.write_text(new)
    patched = run(tmp_path, file)
    assert patched.status == 0, patched.output
    assert [each.seen[1]["calls"] for each in (plain, changed, patched)] == [3, 6, 6]
    assert plain.losses == changed.losses == patched.losses


def test_as_many_blocks_are_computed_again_as_the_memory_asks_for(tmp_path: Path) -> None:
    """5 MiB are too much for nine tenths of the memory, and a block keeps 3 MiB: two of three do."""
    file = Path(shutil.copy(JOBS / "blocks.py", tmp_path / "blocks.py"))
    fix = find_fix("RM601")
    assert fix is not None
    known = tuple(replace(each, kept=float(3 << 20)) for each in reversed(modules(BLOCKS)))
    every, two = fix(full(file, known))
    assert (every.label, two.label) == ("activation checkpointing", "activation checkpointing of 2 blocks")
    assert two.changes == (change("checkpointing", blocks=2),)
    assert isinstance(two.edit, ModelEdit)
    changed = run(tmp_path, file, *two.changes)
    assert changed.change("checkpointing").detail == "2 blocks"
    new = make_patch((two.edit,), tmp_path, Path("blocks.py")).files[0][2]
    assert "for block in net.blocks[:2]:\n" in new
    file.write_text(new)
    patched = run(tmp_path, file)
    assert [each.seen[1]["calls"] for each in (changed, patched)] == [5, 5]
    assert changed.losses == patched.losses
    assert len(fix(full(file, tuple(replace(each, kept=1.0) for each in known)))) == 1, "all are needed"


@pytest.mark.parametrize(
    ("known", "other", "holders"),
    [
        (BLOCKS, "", [("blocks",)]),
        (BLOCKS, "Net.blocks.1", []),
        (("Net", "Net.blocks.0", "Net.blocks.1"), "", []),  # they hold nothing themselves
        (("Net", "Net.blocks.1", "Net.blocks.1.a", "Net.blocks.2", "Net.blocks.2.a"), "", []),  # one is not known
        (("Net", *(f"Net.a.b.{n}{end}" for n in range(2) for end in ("", ".x"))), "", [("a", "b")]),
        (("All", *(f"All.{n}{end}" for n in range(2) for end in ("", ".0", ".0.x", ".1", ".1.x"))), "", [()]),
    ],
)
def test_blocks_are_what_repeats_outermost(known: Sequence[str], other: str, holders: list[tuple[str, ...]]) -> None:
    assert _holders(modules(known, other)) == holders


def test_a_model_of_two_stacks_is_left_to_the_user(tmp_path: Path) -> None:
    file = Path(shutil.copy(JOBS / "blocks.py", tmp_path / "blocks.py"))
    two = [f"Net.{name}.{n}{end}" for name in ("first", "second") for n in range(2) for end in ("", ".x")]
    fix = find_fix("RM601")
    assert fix is not None
    (option,) = fix(full(file, modules(["Net", *two])))
    assert isinstance(option.edit, Snippet)
