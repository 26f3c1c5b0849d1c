"""Which rank of a distributed job this process is, and whether it is one of those that trace. Asking initialises
nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""What launchers put into the environment: torchrun, SLURM's srun, Open MPI, MPICH and Intel MPI."""
MOST_TRACED = 16
"""Ranks that trace of a larger job: traces are megabytes each, and the step table of all ranks says who is late."""


@dataclass(frozen=True)
class RankPlace:
    """None for what nothing says; a single process has no rank."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None

    @property
    def alone(self) -> bool:
        """Whether it trains with nobody else, as far as is known."""
        return self.rank is None or (self.world_size or 1) < 2


def place() -> RankPlace:
    """From torch.distributed once the job has set it up (mp.spawn tells its ranks nothing else), else from the
    launcher's environment."""
    distributed = sys.modules.get("torch.distributed")
    local = _number(LOCAL_RANK)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return RankPlace(int(distributed.get_rank()), local, int(distributed.get_world_size()))
    if os.environ.get("RANK", "").isdigit():
        return RankPlace(_number(RANK[:1]), local, _number(WORLD_SIZE[:1]))
    world = _number(WORLD_SIZE[1:])
    return RankPlace(_number(RANK[1:]), local, world) if world is not None and world > 1 else RankPlace()


def traces(here: RankPlace, wanted: Sequence[str]) -> bool:
    """Whether this rank records traces. wanted: numbers of ranks, "auto" for a sample of a large job, "all"."""
    if here.alone or here.rank is None or not wanted or "all" in wanted or str(here.rank) in wanted:
        return True
    world = here.world_size or 1
    if "auto" not in wanted:
        return False
    if world <= MOST_TRACED:
        return True
    sample = {round(number * (world - 1) / (MOST_TRACED - 1)) for number in range(MOST_TRACED)}
    return here.rank in sample


def _number(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
