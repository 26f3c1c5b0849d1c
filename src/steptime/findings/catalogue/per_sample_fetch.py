"""ST105: tensors in memory are read one sample at a time."""

from __future__ import annotations

from steptime.findings.case import LoaderUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.loader_model import production
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, modelled
from steptime.quantities import format_duration

BYTES_DOMINATE = 0.9
"""Collating over reading: from here on a sample is so large that copying it is the price, and one indexing copies as
much. On a CPU with torch 2.13 indexing whole batches left 0.03 to 0.2 of reading and collating where this ratio was
0.3 to 0.4, 0.6 at 0.5, and gained nothing at 0.95."""
FEWEST_SAMPLES = 4
"""Below this batch size a batched read has nothing to gain."""


@rule(
    "ST105",
    "per-sample-fetch",
    needs={Signal.STEP, Signal.LOADER},
    instead_of=("input-wait", "too-few-workers", "too-many-workers", "slow-collate"),
)
def per_sample_fetch(signals: Signals) -> Finding | None:
    """Tensors that are already in memory are read one sample at a time

    What it means
        The dataset is a tensor in memory, yet each batch is made by indexing it once per sample and stacking the
        pieces: hundreds of tiny operators where one would do.

    How we know
        The dataset holds its data as tensors and has no __getitems__; the time per item and per collated batch
        is measured, without garbage collection. Indexing a whole batch at once still copies its bytes, which is taken
        for the collating (twice that for the lower bound); the rest of the wait is at stake.

    What helps
        Index whole batches: give the dataset a __getitems__(indices) with a collate_fn that takes the batch as it is,
        or drop the DataLoader: for index in torch.randperm(n).split(batch_size): x, y = data[index], labels[index].
        Workers do not help: they add the hand-over of each batch.

    When to ignore it
        When each sample is transformed by Python code that cannot take a batch.
    """
    loader = signals.loader
    produced = production(loader)
    if produced is None or loader.item is None or not loader.in_memory_tensors or loader.batched_fetch:
        return None
    if (loader.batch_size or 1) < FEWEST_SAMPLES:
        return None
    collate = loader.collate.value if loader.collate is not None else 0.0
    if collate >= BYTES_DOMINATE * loader.item.value * (loader.batch_size or 1):
        return None
    wait, copying = loader.wait, collate * loader.demand
    gain = wait.value - copying
    stake = capped(modelled(gain, max(0.1 * gain, wait.low - 2 * copying), wait.high, wait.samples), wait)
    return per_sample_fetch.finding(
        _summary(loader, produced), _advice(loader), stake, account="input", source=loader.site
    )


def _summary(loader: LoaderUse, produced: float) -> str:
    return (
        f"{loader.dataset} in memory is indexed {loader.batch_size} times a batch: "
        f"{format_duration(produced)} to make what one indexing could, {format_duration(loader.wait.value)} waited"
    )


def _advice(loader: LoaderUse) -> str:
    text = "Index whole batches (__getitems__, or data[indices] without a DataLoader)"
    return f"{text} and set num_workers=0." if loader.workers else f"{text}; workers would make it slower."
