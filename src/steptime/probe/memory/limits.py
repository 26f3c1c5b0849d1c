"""What memory a process may have."""

from __future__ import annotations

import os

import torch

CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"
OWN_LIMITS = "/proc/self/limits"
ADDRESS_SPACE = b"Max address space"


def memory_limit() -> int | None:
    """Bytes of the CUDA device in use; else the process's own limit, its container's, or the machine's memory,
    whichever is least. Nothing is initialised by asking."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(int(text) for text in (*_own_limit(), _read(CGROUP_LIMIT)) if text.isdigit())])


def _own_limit() -> list[bytes]:
    """The soft limit of the address space, "unlimited" for none. Not asked of the module `resource`, which a job that
    does not import it would find imported."""
    lines = _read(OWN_LIMITS).splitlines()
    return [line[len(ADDRESS_SPACE) :].split()[0] for line in lines if line.startswith(ADDRESS_SPACE)]


def _read(path: str) -> bytes:
    """A file of the system, b"" where there is none (control groups of version 1). As bytes: a codec would be imported
    into the job."""
    try:
        with open(path, "rb") as file:
            return file.read().strip()
    except OSError:
        return b""
