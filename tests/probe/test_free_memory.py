"""Memory that is free for the process: of the machine, its control groups and its own limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

pytest.importorskip("torch")

from steptime.probe import free_memory
from steptime.probe.free_memory import free_memory as free

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB to be had, whose process is in the group /jobs/one of both versions, without limits."""
    for name in ("MEMORY", "OWN_GROUPS", "GROUPS", "LIMITS", "STATM"):
        monkeypatch.setattr(free_memory, name, str(tmp_path / name))
    (tmp_path / "MEMORY").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable:   {8 << 20} kB\nBuffers: 0 kB\n")
    (tmp_path / "OWN_GROUPS").write_text("5:devices:/\n4:memory:/jobs/one\n0::/jobs/one\n")
    for folder in ("GROUPS/jobs/one", "GROUPS/memory/jobs/one"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def group(folder: Path, limit: str, used: int, cached: int) -> None:
    """A control group of version 2."""
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 7\n")


def test_without_limits_it_is_the_machines(system: Path) -> None:
    assert free() == 8 * GIB
    group(system / "GROUPS/jobs/one", "max", GIB, 0)
    assert free() == 8 * GIB


@pytest.mark.parametrize("place", ["GROUPS/jobs/one", "GROUPS/jobs", "GROUPS"])
def test_the_tightest_group_decides_and_its_cache_gives_way(system: Path, place: str) -> None:
    group(system / place, str(4 * GIB), 3 * GIB, GIB)
    assert free() == 2 * GIB


def test_groups_of_the_first_version_are_asked_too(system: Path) -> None:
    folder = system / "GROUPS/memory/jobs"
    (folder / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    assert free() == 2 * GIB


def test_a_group_that_is_over_its_limit_has_nothing_left(system: Path) -> None:
    group(system / "GROUPS", str(GIB), 2 * GIB, 0)
    assert free() == 0


def test_a_system_that_does_not_tell(system: Path) -> None:
    (system / "MEMORY").unlink()
    (system / "OWN_GROUPS").unlink()
    assert free() is None


def test_a_limit_of_the_process_itself_counts_what_it_has_mapped() -> None:
    """As `ulimit -v` sets it."""
    code = "from steptime.probe.free_memory import *; print(address_space(), free_memory())"
    command = ["bash", "-c", 'ulimit -v 20000000 && exec "$0" "$@"', sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    limit, left = map(int, done.stdout.split())
    assert limit == 20_000_000 * 1024
    assert 0 <= left < limit
