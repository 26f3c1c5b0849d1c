"""The measured link: what processes of this machine exchange at best, measured once with the user's torch.

One law: a link that cannot be measured costs the comparison with it, and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from steptime.machine.machine import Link
from steptime.machine.peaks import MeasurementError, Summary, load_as, measured_by, peak, remembered_at, store

SCRIPT = Path(__file__).with_name("link_script.py")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Which torch.distributed takes on a device by default, and which can be measured."""
MOST_RANKS = 8
PATIENCE_SECONDS = 60
"""Each process imports torch; the exchange itself takes a second."""
FAILURE_KEPT_SECONDS = 86_400
"""Until it is tried again where it failed: each try may cost all our patience."""


class _LinkAnswer(msgspec.Struct, frozen=True):
    """Output of the script, B/s."""

    backend: str
    ranks: int
    rate: Summary


class _Outcome(msgspec.Struct, frozen=True):
    """Remembered outcome of a try; no link: it failed."""

    link: Link | None


def link_of(
    executable: str, device: str, backend: str | None, ranks: int, torch: str, notify: Callable[[str], None]
) -> Link | None:
    """The link between `ranks` processes of this machine, from the cache or measured now and remembered; None where it
    cannot be measured: of fewer than two ranks, by a backend that is none of torch's usual ones, or where it fails.

    backend: as torch.distributed names it, like "nccl" or "cpu:gloo,cuda:nccl". torch: its version. notify: is told, a
    sentence each, that it takes some seconds and that it failed."""
    name, count = BACKENDS.get(device, ""), min(ranks, MOST_RANKS)
    if count < 2 or not name or name not in (backend or ""):
        return None
    path = remembered_at(f"link-{name}", name, str(count), torch)
    with contextlib.suppress(OSError):
        known = load_as(_Outcome, path)
        age = time.time() - path.stat().st_mtime
        if known is not None and (known.link is not None or 0 <= age < FAILURE_KEPT_SECONDS):
            return known.link
    notify(f"benchmarking {name} between {count} processes of this machine, once (--no-peaks skips it)")
    link = None
    try:
        done = measured_by(SCRIPT, executable, [name, str(count)], _LinkAnswer, PATIENCE_SECONDS)
        link = Link(done.answer.backend, done.answer.ranks, peak(done.answer.rate, "B/s"), done.other_cpus)
    except MeasurementError as error:
        notify(f"the benchmark failed ({error}): collectives are shown without their share of the link")
    if link is None or not link.under_load:
        with contextlib.suppress(OSError):  # where the cache cannot be written to it is measured again next time
            store(_Outcome(link), path)
    return link
