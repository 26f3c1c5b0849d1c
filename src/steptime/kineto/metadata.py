"""What a trace says about itself outside its list of events."""

from __future__ import annotations

import json
from dataclasses import dataclass

from steptime.kineto.table import Device


@dataclass(frozen=True, slots=True)
class Facts:
    """See `Trace` for the fields."""

    devices: tuple[Device, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    base_ns: int = 0


def understand(header: bytes, trailer: bytes) -> Facts:
    """Facts from the text before and after the list of events: header up to and with its "[", trailer from its "]".

    A trailer that is missing or damaged costs what it held; a damaged header likewise.
    """
    for text in (header + trailer, header + b"]}"):
        try:
            document = json.loads(text.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            continue
        return _facts(document) if isinstance(document, dict) else Facts()
    return Facts()


def closes(header: bytes, trailer: bytes) -> bool:
    """True when header and trailer are one JSON document: the list of events ends where the trailer begins."""
    try:
        json.loads((header + trailer).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _facts(document: dict[str, object]) -> Facts:
    distributed = document.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    listed = document.get("deviceProperties")
    backend = distributed.get("backend")
    return Facts(
        devices=tuple(_device(each) for each in listed if isinstance(each, dict)) if isinstance(listed, list) else (),
        rank=_count(distributed.get("rank")),
        world_size=_count(distributed.get("world_size")),
        backend=backend if isinstance(backend, str) else "",
        base_ns=_count(document.get("baseTimeNanoseconds")) or 0,
    )


def _device(properties: dict[str, object]) -> Device:
    name = properties.get("name")
    return Device(
        number=_count(properties.get("id")) or 0,
        name=name if isinstance(name, str) else "",
        memory=_count(properties.get("totalGlobalMem")) or 0,
        compute_capability=(_count(properties.get("computeMajor")) or 0, _count(properties.get("computeMinor")) or 0),
        multiprocessors=_count(properties.get("numSms")) or 0,
    )


def _count(value: object) -> int | None:
    """A non-negative integer below 2^62, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        return None
    return value
