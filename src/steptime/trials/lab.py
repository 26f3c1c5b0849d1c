"""The lab: the usual suspects as arms, whatever was found; and the ceiling of what a faster input could give."""

from __future__ import annotations

from steptime.changes import Change
from steptime.remedies.remedy import Promise
from steptime.trials.trial import Arm

NO_INPUT = "no-input"
BATCH = "batch-"
_BFLOAT = Change("autocast", arguments=(("dtype", "bfloat16"),))
_MASKS = "dropout masks"
MODES = ("default", "reduce-overhead", "max-autotune")
"""Of torch.compile, as its documentation lists them."""


def lab_arms(compile_modes: bool = False, on_cuda: bool = False) -> tuple[Arm, ...]:
    """bfloat16, bfloat16 and compiled, no input, and on CUDA no launch; then every compile mode in the job's own
    precision."""
    arms = [
        Arm("bf16", (_BFLOAT,), "", "bfloat16 autocast", Promise.SAME_CURVE, low_precision=True),
        Arm(
            "bf16+compile",
            (_BFLOAT, Change("compile")),
            "",
            "bfloat16 autocast, compiled",
            Promise.SAME_CURVE,
            _MASKS,
            low_precision=True,
        ),
        Arm(NO_INPUT, (Change("cached-batch"),), "", "no input (one batch repeated)", Promise.NEW_TRAINING),
    ]
    if on_cuda:
        graphs = Change("compile", arguments=(("backend", "cudagraphs"),))
        arms.append(Arm("no-launch", (graphs,), "", "no launch (CUDA graphs)", Promise.SAME_CURVE, _MASKS))
    if compile_modes:
        arms += [_compiled(mode) for mode in MODES]
    return tuple(arms)


def _compiled(mode: str) -> Arm:
    change = Change("compile", arguments=(("mode", mode),))
    return Arm(f"compile-{mode}", (change,), "", f"compiled, {mode}", Promise.SAME_CURVE, _MASKS)


def batch_arm(size: int) -> Arm:
    """Batches of another size."""
    change = Change("batch-size", arguments=(("size", size),))
    return Arm(f"{BATCH}{size}", (change,), "", f"batches of {size}", Promise.NEW_TRAINING)


def batch_of(arm: Arm) -> int | None:
    """The batch size of an arm that sets one."""
    return int(arm.name.removeprefix(BATCH)) if arm.name.startswith(BATCH) else None
