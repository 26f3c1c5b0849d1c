"""RM403: device memory in segments that grow."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import EnvironmentEdit, Option, Promise, remedy

NAME, VALUE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
UNCACHED = 100.0
"""Calls a step, from which on nothing is cached at all (ST306): segments cannot help there."""
LIKELY = 0.5


@remedy("RM403", "expandable-segments", addresses={"ST306", "ST703", "ST705"}, promise=Promise.SAME_BITS, risk=1)
def expandable_segments(case: Case) -> Option | None:
    """Device memory in segments that grow

    What it changes
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, beside what is set there: the allocator maps more pages to a
        segment instead of asking the driver for another one, so that sizes that change leave no holes.

    What it promises
        Equal losses: only addresses change.

    What it should gain
        Half of the time in which the device idles for calls to the driver, and memory that fragmentation takes. Calls
        that empty_cache() in the loop causes stay.

    When to leave it
        When tensors are shared between processes by their handles (older versions of torch refuse that).
    """
    settings = case.settings
    if not case.step.device.startswith("cuda") or not (case.allocations or case.memory is not None):
        return None
    if sum(use.calls for use in case.allocations) >= UNCACHED:
        return None
    present = settings.allocator if settings is not None else ""
    if "expandable_segments" in present:
        return None
    idle = sum(use.idle.value for use in case.allocations)
    value = ",".join(filter(None, (present, VALUE)))
    saving = modelled(LIKELY * idle, 0.0, idle, case.step.steady)
    return Option(
        VALUE, (Change("environment", arguments=((NAME, value),)),), saving, EnvironmentEdit(((NAME, value),))
    )
