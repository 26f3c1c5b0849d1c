"""Memory that the system would still give this process: of the machine, of each control group that the process is in,
and of its own limit. To ask initialises nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

from steptime.probe.ours import pass_on

MEMORY, OWN_GROUPS, GROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"
LIMITS, STATM = "/proc/self/limits", "/proc/self/statm"
ADDRESS_SPACE = b"Max address space"
VERSIONS = {
    "": ("", "memory.max", "memory.current", b"inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file"),
}
"""Control groups of version 2 and 1 by their controllers: folder, files with limit and use, and the part of the use
that is a cache and gives way, as Kubernetes counts it, too (Linux, admin-guide/cgroup-v2 and cgroup-v1/memory)."""


def free_memory() -> int | None:
    """Bytes of memory that this process can still get; None if the system does not report it."""
    machine, own = _number(read(MEMORY), b"MemAvailable:"), address_space()
    found = [limit - used for limit, used in groups()]
    if machine is not None:
        found.append(machine * 1024)
    if own is not None:
        found.append(own - int((read(STATM).split() or (0,))[0]) * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found)) if found else None


def groups() -> Iterator[tuple[int, int]]:
    """Yields (limit, use) in bytes of each control group with a limit that contains this process. Inside of a container
    the paths may be those of the host, which do not exist there; the top group is then the container's."""
    for line in os.fsdecode(read(OWN_GROUPS)).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if (known := VERSIONS.get(controllers)) is None:
            continue
        home, most, use, cache = known
        top, below = os.path.join(GROUPS, home), path.strip("/").split("/")
        for folder in dict.fromkeys(os.path.join(top, *below[:depth]) for depth in range(len(below) + 1)):
            if (limit := read(os.path.join(folder, most))).isdigit():
                freed = _number(read(os.path.join(folder, "memory.stat")), cache) or 0
                yield int(limit), max(0, int(read(os.path.join(folder, use)) or 0) - freed)


def address_space() -> int | None:
    """Bytes that the process may map (`ulimit -v`); None without a limit. Read without the module `resource`, which a
    job that does not import it would find imported."""
    text = next((line.split()[3] for line in read(LIMITS).splitlines() if line.startswith(ADDRESS_SPACE)), b"")
    return int(text) if text.isdigit() else None


def read(path: str) -> bytes:
    """Content of a system file; b"" if there is none. It is bytes, because a codec would be imported into the job."""
    try:
        with open(path, "rb") as file:
            return file.read().strip()
    except OSError as error:
        pass_on(error)
        return b""


def _number(text: bytes, name: bytes) -> int | None:
    """The number behind a name."""
    lines = (line.split() for line in text.splitlines() if line.startswith(name))
    return next((int(words[1]) for words in lines if words[0] == name and words[1:] and words[1].isdigit()), None)
