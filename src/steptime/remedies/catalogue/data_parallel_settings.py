"""RM701: DistributedDataParallel set up for what the model is."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.changes import Change, Scalar
from steptime.findings.case import Case
from steptime.findings.stakes import modelled, named
from steptime.quantities import Estimate
from steptime.remedies.remedy import CallEdit, Option, Promise, remedy

WRAPPER = "DistributedDataParallel"
FIRST_MEGABYTES, LAST_MEGABYTES = 100, 5
"""Buckets larger than torch's 25 MB: fewer collectives, for a network with a high latency; and smaller ones, which
begin earlier in the backward."""
MANY = 4.0
"""Collectives a step, from which on there is something to put together."""
LIKELY = 0.25
"""Of what perfect overlap would save."""
VIEWS: tuple[tuple[str, Scalar], ...] = (("static_graph", True), ("gradient_as_bucket_view", True))


@remedy("RM701", "data-parallel-settings", addresses={"ST805", "ST812", "ST813"}, promise=Promise.SAME_CURVE, risk=2)
def data_parallel_settings(case: Case) -> Iterator[Option]:
    """DistributedDataParallel set up for what the model is

    What it changes
        static_graph=True and gradient_as_bucket_view=True (the order of gradients is learned once, and they are not
        copied into the buckets); another size of the buckets: larger where there are many collectives, smaller where
        there are few and they begin late; and find_unused_parameters=False where each step looks for them.

    What it promises
        A curve as another seed would give: gradients are summed in other groups.

    What it should gain
        A quarter of what hiding all communication would save is likely.

    When to leave it
        static_graph, and no search: when parameters are left unused in some steps (torch raises an error then, and
        the trial says so). The view: when gradients are replaced instead of written to.
    """
    used = case.gradients
    if used is None and not any(root.type == WRAPPER for root in case.roots):
        return
    calls = used.buckets if used is not None else sum(use.calls for use in case.collectives)
    if used is not None and used.search.value > 0:
        yield _option(case, (("find_unused_parameters", False),), used.search)
    yield _option(case, VIEWS)
    size = FIRST_MEGABYTES if calls >= MANY else LAST_MEGABYTES
    yield _option(case, (("bucket_cap_mb", size),))


def _option(case: Case, arguments: tuple[tuple[str, Scalar], ...], saving: Estimate | None = None) -> Option:
    edit = CallEdit(WRAPPER, tuple((name, str(value)) for name, value in arguments))
    label = ", ".join(f"{name}={value}" for name, value in arguments)
    return Option(label, (Change("ddp", arguments=arguments),), saving or _saving(case), edit)


def _saving(case: Case) -> Estimate | None:
    predictions = case.replay.predictions if case.replay is not None else ()
    hidden = next((each.saved for each in predictions if each.change == "communication overlapped"), None)
    account = named(case.accounts, "communication")
    most = hidden or (account.recoverable if account is not None else None)
    return modelled(LIKELY * most.value, 0.0, most.high, case.step.steady) if most is not None else None
