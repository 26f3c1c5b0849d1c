"""RM601: activations computed again instead of kept."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

EXAMPLE = """from torch.utils.checkpoint import checkpoint

for block in self.blocks:
    x = checkpoint(block, x, use_reentrant=False)"""
FREES = "Free"
"""In the name of a call to the driver: memory was given back in order to be asked for again, so it is nearly full."""
NEARLY = 0.9
"""Of the device's memory: little is left for a larger batch."""


@remedy(
    "RM601",
    "activation-checkpointing",
    addresses={"ST306", "ST704", "ST705"},
    promise=Promise.SAME_BITS,
    risk=4,
    frees=0.6,
)
def activation_checkpointing(case: Case) -> Option | None:
    """Activations computed again instead of kept

    What it changes
        Each of the model's repeated blocks (children of one class in a ModuleList or Sequential) keeps only its input;
        backward computes the rest again.

    What it promises
        Equal losses: the random numbers of the forward are restored when it is repeated.

    What it should gain
        Memory, not time: the activations of all blocks but one. It costs the forward of the blocks a second time, about
        a quarter of a step. Time is gained only where memory that is nearly full stalls the allocator, or where the
        room is used for a larger batch. The trial tells peak memory and time.

    When to leave it
        When memory is to spare (then see RM305).
    """
    if case.recompute is not None:
        return None
    memory = case.memory
    full = memory is not None and bool(memory.retries or (memory.capacity and memory.peak > NEARLY * memory.capacity))
    if not full and not any(FREES in use.name for use in case.allocations):
        return None
    return Option("activation checkpointing", (Change("checkpointing"),), None, Snippet(EXAMPLE))
