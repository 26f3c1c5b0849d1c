"""What memory a process may have."""

from __future__ import annotations

import os
import resource

import torch

CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


def memory_limit() -> int | None:
    """Bytes of the CUDA device in use; else the process's own limit, its container's, or the machine's memory,
    whichever is least. Nothing is initialised by asking."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [own] if own != resource.RLIM_INFINITY else []
    try:
        with open(CGROUP_LIMIT, encoding="ascii") as file:
            text = file.read().strip()
        limits += [int(text)] if text.isdigit() else []
    except OSError:
        pass  # no control group of version 2
    limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits)
