"""Items made once: when that is proposed, that the patch does what the change did, and when a trial refuses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advice.healthy import HEALTHY, MS, about, categories, loader, phases, step
from probe.variants import Variant, change, run

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.explain import find_fix
from steptime.advice.fix import ArgumentEdit, Option, Snippet
from steptime.advice.propose import propose
from steptime.advice.run_uses import MemoryUse, SettingsUse
from steptime.changes import VariantOptions
from steptime.quantities import SourceLine
from steptime.recording.recording import ItemFacts
from steptime.trials.edits import apply_edit
from steptime.trials.patch import make_patch

pytest.importorskip("torch")

JOB = """
import json, random
import numpy, torch
from torch.utils.data import DataLoader, Dataset

generator, made = numpy.random.default_rng(0), []

class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        made.append(index)
        return {ITEM}

def collate(items):
    {COLLATE}
    return torch.stack(items)

torch.manual_seed(0)
squares = Squares()
loader = DataLoader(squares, batch_size=2, shuffle=True, collate_fn=collate)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("SEEN " + json.dumps({"loss": loss.item(), "made": len(made)}), flush=True)
"""
SAME = "torch.full((4,), float(index)) ** 2"
WHOLE = VariantOptions(steps=500, warm_up=0)


def written(folder: Path, item: str = SAME, collate: str = "pass") -> Path:
    file = folder / "train.py"
    file.write_text(JOB.replace("{ITEM}", item).replace("{COLLATE}", collate))
    return file


def seen(variant: Variant) -> list[dict[str, Any]]:
    assert variant.status == 0, variant.output
    return variant.seen


def case(**more: Any) -> Case:
    """A job of which each step of 80 ms waits 64 ms for items of 2 ms."""
    known: dict[str, Any] = {"length": 2000, "items": ItemFacts(1, 2, False, 50_000.0, 8 << 30)}
    return replace(
        HEALTHY,
        step=step(80 * MS),
        categories=categories(80 * MS, input=64 * MS),
        phases=phases(input=64 * MS, forward=6 * MS, backward=9 * MS, optimizer=0.7 * MS),
        loader=loader(64 * MS, 2 * MS, **{**known, **more}),
    )


def offered(of: Case) -> Option | None:
    found = [each.option for each in propose(of, examine(of).findings) if each.fix.code == "RM110"]
    assert len(found) < 2
    return found[0] if found else None


# -- when it is proposed -----------------------------------------------------------------------------------------------


def test_dear_items_that_are_not_drawn_are_kept_and_memory_and_time_are_reported() -> None:
    option = offered(case())
    assert option is not None
    assert option.changes[0].kind == "cached-items"
    assert "2,000 items" in option.label
    assert "95.4 MiB" in option.label
    assert "4.0 s" in option.label or "4 s" in option.label
    assert option.saving is not None
    assert 55 * MS < option.saving.value < 64 * MS


@pytest.mark.parametrize(
    "different",
    [
        {"items": ItemFacts(1, 2, True, 50_000.0, 8 << 30)},
        {"items": ItemFacts(1, 2, False, None, 8 << 30)},
        {"items": None},
        {"length": None},
        {"iterable": True},
        {"in_memory_tensors": True},
        {"batched_fetch": True},
    ],
)
def test_items_that_may_differ_or_are_there_are_left_alone(different: dict[str, object]) -> None:
    assert offered(case(**different)) is None


def test_what_does_not_fit_into_memory_is_advised_to_be_kept_on_the_disk() -> None:
    option = offered(case(length=400_000))
    assert option is not None
    assert option.changes == ()
    assert isinstance(option.edit, Snippet)
    assert "on disk" in option.advice
    assert "18.6 GiB" in option.advice


def test_each_training_process_of_a_host_has_a_list_of_its_own() -> None:
    eight = SettingsUse(intra_op_threads=1, usable_cpus=8, logical_cpus=8, trainers_on_host=8)
    assert offered(case(length=20_000)) is not None
    option = offered(replace(case(length=20_000), settings=eight))
    assert option is not None
    assert option.changes == ()


def test_a_container_that_gives_less_than_the_machine_counts() -> None:
    option = offered(replace(case(), memory=MemoryUse("cpu", 900 << 20, 1 << 30)))
    assert option is not None
    assert option.changes == ()


def test_a_list_that_takes_minutes_to_make_is_not_tried() -> None:
    option = offered(case(length=40_000))
    assert option is not None
    assert option.changes == ()
    assert "too long for a trial" in option.advice


def test_alongside_workers_only_what_they_do_not_hide_is_predicted() -> None:
    with_workers = case(workers=2, prefetch_factor=2, busy=1.0)
    assert with_workers.loader is not None
    waits = replace(with_workers.loader, wait=about(16 * MS))
    option = offered(replace(with_workers, loader=waits))
    assert option is None or option.saving is None or option.saving.value < 16 * MS


# -- what it does ------------------------------------------------------------------------------------------------------


def test_the_patch_makes_each_item_once_as_the_change_does(tmp_path: Path) -> None:
    file = written(tmp_path)
    lines = file.read_text().split("\n")
    number = next(number for number, text in enumerate(lines, 1) if "DataLoader(squares" in text)
    plain = seen(run(tmp_path, file, variant=WHOLE))
    changed = run(tmp_path, file, change("cached-items", site=f"train.py:{number}"), variant=WHOLE)
    fix = find_fix("RM110")
    assert fix is not None
    site = SourceLine(str(file), number, "<module>", lines[number - 1])
    (option,) = fix(case(site=site))
    assert option.edit is not None
    patch = make_patch((option.edit,), tmp_path, Path("train.py"))
    assert patch.snippets == ()
    file.write_text(patch.files[0][2])
    patched = seen(run(tmp_path, file, variant=WHOLE))
    assert "DataLoader([squares[index] for index in range(len(squares))], batch_size=2" in patch.files[0][2]
    losses = [[each["loss"] for each in steps] for steps in (plain, seen(changed), patched)]
    assert losses[0] == losses[1] == losses[2]
    assert plain[-1]["made"] == 3 * 12
    assert patched[0]["made"] == patched[-1]["made"] == 12
    assert seen(changed)[5]["made"] == seen(changed)[-1]["made"]  # some were asked for again, and no more than those
    reported = changed.change("cached-items")
    assert reported.exercised
    assert "12 items made" in reported.detail


def test_a_collate_function_that_changes_items_in_workers_is_seen(tmp_path: Path) -> None:
    file = written(tmp_path, SAME, "items[0].add_(1)")
    file.write_text(file.read_text().replace("collate_fn=collate", "collate_fn=collate, num_workers=1"))
    reported = run(tmp_path, file, change("cached-items"), variant=WHOLE).change("cached-items")
    assert not reported.exercised
    assert "not the same" in reported.detail


@pytest.mark.parametrize(
    ("item", "collate", "reason"),
    [
        ("torch.rand(4) + index", "pass", "draws random numbers"),
        ("torch.full((4,), random.random())", "pass", "draws random numbers"),
        ("torch.full((4,), float(generator.random()))", "pass", "not the same"),
        ("torch.full((4,), float(len(made)))", "pass", "not the same"),
        (SAME, "items[0].add_(1)", "not the same"),
    ],
)
def test_items_that_are_not_the_same_twice_are_not_kept(tmp_path: Path, item: str, collate: str, reason: str) -> None:
    file = written(tmp_path, item, collate)
    reported = run(tmp_path, file, change("cached-items"), variant=WHOLE).change("cached-items")
    assert not reported.exercised
    assert reason in reported.detail


# -- what is written ---------------------------------------------------------------------------------------------------


def edited(source: str) -> str | None:
    fix = find_fix("RM110")
    assert fix is not None
    number = next(number for number, text in enumerate(source.split("\n"), 1) if "DataLoader(" in text)
    (option,) = fix(case(site=SourceLine("train.py", number, "", "")))
    assert isinstance(option.edit, ArgumentEdit)
    return apply_edit(option.edit, source)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data, 8)", "DataLoader([data[index] for index in range(len(data))], 8)"),
        ("DataLoader(dataset=a.b, batch_size=8)", "dataset=[a.b[index] for index in range(len(a.b))], batch_size=8"),
        ("DataLoader(data, 8)  # len(loader.dataset)\nprint(len(loader.dataset))", "DataLoader([data[index] for"),
        ("DataLoader(load(args.dataset), 8)\nargs = p.parse_args()", "for samples in [load(args.dataset)] for index"),
        ("DataLoader(data, 8, **options)", "DataLoader([data[index] for index in range(len(data))], 8, **options)"),
        ("DataLoader(Data(3), 8)", "[samples[index] for samples in [Data(3)] for index in range(len(samples))], 8"),
    ],
)
def test_the_dataset_is_made_once_however_it_is_given(before: str, after: str) -> None:
    new = edited(f"loader = {before}\n")
    assert new is not None
    assert after in new


@pytest.mark.parametrize(
    "source",
    [
        "for epoch in range(3):\n    loader = DataLoader(data, 8)\n",
        "loader = DataLoader(data, 8)\nnames = loader.dataset.names\n",
        "loader = DataLoader(*given)\n",
        "loader = DataLoader(**given)\n",
        "loader = DataLoader(index, 8)\n",
        "loader = DataLoader(load(samples), 8)\n",
        "loader = DataLoader(batch_size=8)\n",
    ],
)
def test_nothing_is_written_where_a_list_would_not_do(source: str) -> None:
    assert edited(source) is None
