"""The planted jobs: what is the right fix of each, and what must never be adopted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FAULTS = HERE.parent.parent / "tests" / "jobs" / "faults" / "scripts"


@dataclass(frozen=True)
class Planted:
    """A job. right: codes of the fixes that cure its fault, any one of them; none where nothing may be adopted.
    harmful: codes that must not be adopted. arguments: of the script."""

    name: str
    right: tuple[str, ...]
    harmful: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """Its own file, or that of the jobs of the tests."""
        own = HERE / "jobs" / f"{self.name}.py"
        return own if own.exists() else FAULTS / f"{self.name}.py"


PLANTED = (
    Planted("anomaly_literal", ("RM501",)),
    Planted("profiler_left_on", ("RM503",)),
    Planted("too_many_workers", ("RM101",)),
    Planted("garbage_collection", ("RM107",)),
    Planted("too_many_threads", ("RM401",)),
    Planted("pointwise_chain", ("RM303",)),
    Planted("workers_restarted", ("RM102",)),
    Planted("recompilation", ("RM309",)),
    Planted("recompute", ("RM305",)),
    Planted("single_tensor_optimizer", ("RM201",)),
    Planted("deterministic_left_on", ("RM502",)),
    Planted("adam_share", ("RM201",)),
    Planted("per_sample_fetch", ("RM107",), harmful=("RM101",)),
    Planted("slow_items", ("RM101",)),
    Planted("slow_collate", ("RM101",)),
    Planted("zeroed_gradients", ("RM203",)),
    Planted("faint_features", ("RM405",)),
    Planted("changing_lengths", (), harmful=("RM303",)),
    Planted("small_operators", ("RM303",)),
    Planted("large_tensors", ("RM402", "RM303")),
)
"""The largest effects first."""
