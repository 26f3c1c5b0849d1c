"""Rate at which processes of this machine exchange data at best, measured once with the user's torch.

One law: a link that cannot be measured costs only the comparison with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from steptime.machine.machine import Link
from steptime.machine.peaks import MeasurementError, load_as, measured_by, remembered_at, store

SCRIPT = Path(__file__).with_name("link_script.py")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""torch.distributed's default backend on each device; only these can be measured."""
MOST_RANKS = 8
PATIENCE_SECONDS = 60
"""Most seconds: each process imports torch, while the exchange takes a second."""
FAILURE_KEPT_SECONDS = 86_400
"""Seconds until a failed measurement is tried again, since each try may take PATIENCE_SECONDS."""


def link_of(
    executable: str, device: str, backend: str | None, ranks: int, torch: str, notify: Callable[[str], None]
) -> Link | None:
    """Link between `ranks` processes of this machine, stored or measured now. None if it cannot be measured: fewer than
    two ranks, an unusual backend, or a failure.

    backend: name in torch.distributed, such as "nccl" or "cpu:gloo,cuda:nccl". torch: its version. notify: function
    that gets a sentence before a measurement and after a failure."""
    name, count = BACKENDS.get(device, ""), min(ranks, MOST_RANKS)
    if count < 2 or not name or name not in (backend or ""):
        return None
    path = remembered_at(f"link-{name}", name, str(count), torch)
    with contextlib.suppress(OSError):
        known = load_as(tuple[Link | None], path)  # None: a failure
        age = time.time() - path.stat().st_mtime
        if known is not None and (known[0] is not None or 0 <= age < FAILURE_KEPT_SECONDS):
            return known[0]
    notify(f"benchmarking {name} between {count} processes of this machine, once (--no-peaks skips it)")
    link = None
    try:
        done = measured_by(SCRIPT, executable, [name, str(count)], Link, PATIENCE_SECONDS)
        link = replace(done.answer, other_cpus=done.other_cpus)
    except MeasurementError as error:
        notify(f"the benchmark failed ({error}): collectives are shown without their share of the link")
    if link is None or not link.under_load:
        with contextlib.suppress(OSError):  # where the cache cannot be written to it is measured again next time
            store((link,), path)
    return link
