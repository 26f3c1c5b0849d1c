"""The measured link: what processes of this machine exchange at best, measured once with the user's torch.

One law: a link that cannot be measured costs the comparison with it, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import msgspec

from steptime.folders import cache_folder
from steptime.hardware.identity import processor_name
from steptime.hardware.machine import Link
from steptime.quantities import Estimate

SCRIPT = Path(__file__).with_name("link_script.py")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Which torch.distributed takes on a device by default, and which can be measured."""
MOST_RANKS = 8
PATIENCE_SECONDS = 60
"""Each process imports torch; the exchange itself takes a second."""


class _Rate(msgspec.Struct, frozen=True):
    best: float
    median: float
    blocks: int


class _Answer(msgspec.Struct, frozen=True):
    """What the script prints, B/s."""

    backend: str
    ranks: int
    rate: _Rate


def link_of(executable: str, device: str, backend: str | None, ranks: int, torch: str) -> Link | None:
    """The link between `ranks` processes of this machine, from the cache or measured now and remembered; None where it
    cannot be measured: of fewer than two ranks, by a backend that is none of torch's usual ones, or where it fails.

    backend: as torch.distributed names it, like "nccl" or "cpu:gloo,cuda:nccl". torch: its version.
    """
    name, count = BACKENDS.get(device, ""), min(ranks, MOST_RANKS)
    if count < 2 or not name or name not in (backend or ""):
        return None
    path = _cache_path(name, count, torch)
    link = _load(path)
    if link is None:
        link = _measure(executable, name, count)
        _remember(link, path)
    return link


def _measure(executable: str, backend: str, ranks: int) -> Link | None:
    try:
        run = subprocess.run(
            [executable, str(SCRIPT), backend, str(ranks)], capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        answer = msgspec.json.decode(run.stdout.splitlines()[-1] if run.stdout else b"", type=_Answer)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None
    rate = answer.rate
    return Link(answer.backend, answer.ranks, Estimate(rate.best, rate.median, rate.best, rate.blocks, "B/s"))


def _cache_path(backend: str, ranks: int, torch: str) -> Path:
    key = "\n".join((processor_name(), str(os.cpu_count()), backend, str(ranks), torch))
    digest = hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()[:16]
    return cache_folder() / f"link-{backend}-{digest}.json"


def _load(path: Path) -> Link | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Link)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def _remember(link: Link | None, path: Path) -> None:
    """Best effort: where the cache cannot be written to it is measured again next time."""
    if link is None:
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(link) + b"\n")
        partial.replace(path)
    except OSError:
        return
