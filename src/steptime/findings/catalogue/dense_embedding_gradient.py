"""ST502: the gradient of an embedding is dense."""

from __future__ import annotations

from steptime.findings.case import OptimizerUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, scaled
from steptime.quantities import format_duration, format_share

LEAST_PART = 0.3
"""Of an optimiser's elements: below this the rest of the model is what it updates."""


@rule(
    "ST502",
    "dense-embedding-gradient",
    needs={Signal.STEP, Signal.OPTIMIZERS},
    instead_of=("optimizer-share", "single-tensor-optimizer"),
)
def dense_embedding_gradient(signals: Signals) -> Finding | None:
    """The gradient of a large embedding is dense, and almost all of it is zero

    What it means
        Only a few rows of the table were looked up, but the gradient has the size of the whole table: it is filled
        with zeros, and the optimiser updates every row, every step.

    How we know
        Embedding weights with a dense gradient are counted among the optimiser's elements; their part of the
        optimiser's time is at stake (making the zeros in backward comes on top).

    What helps
        Embedding(..., sparse=True) with SparseAdam, SGD or Adagrad for that table (the moments of untouched rows then
        stay as they are, which changes Adam's curve slightly); or the table in an optimiser of its own that steps
        less often.

    When to ignore it
        When most rows are looked up in each batch (a small vocabulary), or when the output layer shares the table:
        then the gradient is really dense.
    """
    use = max(signals.optimizers, key=_stake)
    part = ratio(use.dense_embedding_elements, max(use.elements, use.dense_embedding_elements))
    if part < LEAST_PART:
        return None
    stake = scaled(use.duration, part)
    summary = (
        f"{use.type} spends {format_duration(stake.value)} a step "
        f"({format_share(ratio(stake.value, signals.step.duration.value))}) on "
        f"{use.dense_embedding_elements / 1e6:.1f} M elements of embeddings"
    )
    advice = "Make the embedding sparse (sparse=True) with SparseAdam or SGD for it."
    return dense_embedding_gradient.finding(summary, advice, stake, source=use.site)


def _stake(use: OptimizerUse) -> float:
    return use.duration.value * ratio(use.dense_embedding_elements, max(use.elements, 1))
