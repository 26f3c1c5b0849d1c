"""Which waits of the host are copies of pageable memory to the device."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import CopyUse

LEAST_BYTES = 65_536.0
"""A step: the driver takes up to 64 KiB of pageable memory along without waiting (CUDA's API synchronisation
behaviour); more is staged in pieces, and the host stands meanwhile."""


def staging_operators(copies: Iterable[CopyUse]) -> frozenset[str]:
    """Operators that copy a considerable amount of pageable memory to the device and nothing back: when the host waits
    in one, it is staging. Where an operator also copies from the device, nobody can tell which of the two it waits for.
    """
    copies = tuple(copies)
    back = {copy.operator for copy in copies if copy.kind == "DtoH"}
    sent = (copy for copy in copies if copy.kind == "HtoD" and copy.memory == "pageable" and copy.operator)
    return frozenset(copy.operator for copy in sent if copy.bytes >= LEAST_BYTES) - back
