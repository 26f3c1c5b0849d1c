"""Rows of like length come into one batch, each as often as before, and nothing else of the job changes."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from probe.variants import STEPS, Variant, change, run

pytest.importorskip("torch")
WHOLE = replace(STEPS, steps=64, warm_up=0, fingerprint_steps=0)
JOB = """
    import json, random, torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            random.random()  # as augmentation draws
            return ITEM

    def collate(rows):
        rows = [row.values() if isinstance(row, dict) else row for row in rows]
        rows = [next(each for each in row if isinstance(each, torch.Tensor)) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    torch.manual_seed(0)
    random.seed(0)
    loader = DataLoader(Rows(), collate_fn=collate, LOADER)
    model = torch.nn.Embedding(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            seen = {"rows": batch[:, 0].tolist(), "tokens": batch.numel(), "size": loader.batch_size}
            print("SEEN " + json.dumps({**seen, "drawn": torch.rand(()).item(), "python": random.getstate()[1][:3]}))
"""
FOURS = "batch_size=4, shuffle=True"
LONG_AND_SHORT = "{'length': 1, 'input_ids': torch.full((4 + index * 7 % 41,), index)}"


def played(
    folder: Path, *changes: Any, item: str = LONG_AND_SHORT, loader: str = "batch_size=4, shuffle=True"
) -> Variant:
    job = folder / "train.py"
    job.write_text(textwrap.dedent(JOB).replace("ITEM", item).replace("LOADER", loader))
    return run(folder, job, *changes, variant=WHOLE)


@pytest.mark.parametrize("item", [LONG_AND_SHORT, "(torch.full((4 + index * 7 % 41,), index), index)"])
def test_each_row_is_trained_on_as_often_and_less_of_it_is_padding(tmp_path: Path, item: str) -> None:
    plain = played(tmp_path, item=item)
    changed = played(tmp_path, change("similar-lengths"), item=item)
    assert changed.status == plain.status == 0, changed.output
    assert changed.change("similar-lengths").exercised, changed.process.changes
    for epoch in (slice(0, 13), slice(13, 26)):
        rows = Counter(row for step in changed.seen[epoch] for row in step["rows"])
        assert rows == dict.fromkeys(range(50), 1)
    assert [len(step["rows"]) for step in changed.seen] == ([4] * 12 + [2]) * 2, "the short batch is the last one"
    assert sum(step["tokens"] for step in changed.seen) < 0.9 * sum(step["tokens"] for step in plain.seen)
    assert {step["size"] for step in changed.seen} == {4}
    assert changed.seen[0]["rows"] != changed.seen[13]["rows"]
    for name in ("drawn", "python"):
        assert [step[name] for step in changed.seen] == [step[name] for step in plain.seen], "of the job's own numbers"


@pytest.mark.parametrize(
    ("item", "loader", "reason"),
    [
        ("torch.full((40,), index),", FOURS, "all inspected rows have one length"),
        ("(index, torch.full((40,), index))", FOURS, "has no length"),
        (LONG_AND_SHORT, "batch_sampler=[[0, 1], [2]] * 8", "makes its batches itself"),
        (LONG_AND_SHORT, "batch_size=4", "goes through its rows in their order"),
    ],
)
def test_what_cannot_be_sorted_says_why(tmp_path: Path, item: str, loader: str, reason: str) -> None:
    made = change("similar-lengths", site=f"train.py:{_line_of_loader(textwrap.dedent(JOB))}")
    reported = played(tmp_path, made, item=item, loader=loader).change("similar-lengths")
    assert not reported.exercised
    assert reason in reported.detail


def test_a_sampler_of_the_jobs_stays_what_it_is_and_a_loader_that_is_made_anew_stays_sorted(tmp_path: Path) -> None:
    """As accelerate makes loaders anew, and Lightning asks what a sampler is."""
    own = "batch_size=4, sampler=own)\n    loader = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler"
    job = textwrap.dedent(JOB).replace("ITEM", LONG_AND_SHORT).replace("LOADER", f"{own}, collate_fn=collate")
    job = job.replace(
        "loader = DataLoader(Rows()",
        "from torch.utils.data import DistributedSampler\n"
        "own = DistributedSampler(Rows(), num_replicas=1, rank=0, seed=3)\nloader = DataLoader(Rows()",
        1,
    ).replace("\n    loader = ", "\nloader = ")
    job = (
        job.replace("for batch in loader:", "for batch in begun(loader, epoch):")
        .replace(
            "model = ",
            "def begun(loader, epoch):\n"
            "    sampler = loader.batch_sampler.sampler\n"
            "    assert isinstance(sampler, DistributedSampler)\n"
            "    sampler.set_epoch(epoch)\n"
            "    sampler.generator = None\n"
            "    assert (own.epoch, own.generator, sampler.seed) == (epoch, None, 3)\n"
            "    return loader\n\nmodel = ",
            1,
        )
        .replace('"size": loader.batch_size', '"size": 4')
    )
    (tmp_path / "train.py").write_text(job)
    made = change("similar-lengths", site=f"train.py:{_line_of_loader(job)}")
    changed = run(tmp_path, tmp_path / "train.py", made, variant=WHOLE)
    assert changed.status == 0, changed.output
    assert changed.change("similar-lengths").exercised, changed.process.changes
    for epoch in (slice(0, 13), slice(13, 26)):
        assert Counter(row for step in changed.seen[epoch] for row in step["rows"]) == dict.fromkeys(range(50), 1)
    assert changed.seen[0]["rows"] != changed.seen[13]["rows"]


def _line_of_loader(job: str) -> int:
    return next(number for number, line in enumerate(job.split("\n"), 1) if "DataLoader(Rows()" in line)
