"""Augmentation that a device could do, and where an answer on the input leads."""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import MS, US, loader, step
from advice.planted import PLANTED

from steptime.advice.evidence import Case, PathUse
from steptime.advice.rules.input import input_wait, too_few_workers
from steptime.quantities import SourceLine

ITEM = SourceLine("train.py", 30, "Images.__getitem__", "return augment(image)")
JITTER = SourceLine("train.py", 24, "augment", "image = image * random()")
DECODE = SourceLine("train.py", 29, "Images.__getitem__", "image = decode(self.files[index])")


def case_on(device: str, spent: float = 12 * MS) -> Case:
    """A job that waits 30 of 40 ms for its items."""
    base = PLANTED["too-few-workers"]["fires"]
    paths = (PathUse(spent, "input", (JITTER, ITEM)), PathUse(14 * MS, "input", (DECODE,)))
    return replace(base, step=replace(step(base.step.duration.value), device=device), paths=paths)


def test_augmentation_says_what_the_device_would_take_off_the_loader() -> None:
    for rule in (input_wait, too_few_workers):
        (found,) = rule(case_on("cuda"))
        (evidence,) = found.evidence
        assert evidence.startswith("Augmentation at train.py:24 takes 12 ms per step (30 %). ")
        assert "torchvision.transforms.v2, kornia" in evidence


def test_it_is_not_said_where_no_device_is_or_little_is_augmented() -> None:
    for case in (case_on("cpu"), case_on("cuda", 1 * MS)):
        (found,) = too_few_workers(case)
        assert found.evidence == ()


def test_a_wait_for_items_leads_to_the_formats_and_shards() -> None:
    (found,) = input_wait(case_on("cpu"))
    assert "steptime bench-loader --formats" in found.advice
    assert "WebDataset" in dict(input_wait.page.sections)["What helps"]
    in_memory = replace(case_on("cpu"), loader=loader(8 * MS, 200 * US, in_memory_tensors=True))
    (found,) = input_wait(in_memory)
    assert "formats" not in found.advice
    (found,) = too_few_workers(PLANTED["too-few-workers"]["fires-iterable"])
    assert "its own shards" in found.advice
