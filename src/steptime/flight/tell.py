"""What was found, as a text for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.flight.stall import Stall, counted_ranks
from steptime.flight.triage import Triage
from steptime.quantities import format_source

SHOWN = 5
"""Stalls that are told in the text: the others follow from the first."""


def as_text(found: Triage, passed_over: Sequence[str] = ()) -> str:
    """The whole text, with a line feed at its end."""
    head = f"{len(found.ranks)} dumps ({counted_ranks(found.ranks)}), {found.checked} collectives compared"
    lines = [f"{head}, no dump of {counted_ranks(found.absent)}." if found.absent else f"{head}.", ""]
    if not found.stalls:
        lines += [
            "No rank waits in a collective, as far as the dumps go: all that was called is done and agrees.",
            "A rank that hangs elsewhere (input, a lock, a checkpoint) shows in: py-spy dump --pid PID",
        ]
    for number, stall in enumerate(found.stalls[:SHOWN]):
        lines += [*_stall(stall, first=not number), ""]
    if len(found.stalls) > SHOWN:
        lines.append(f"… and {len(found.stalls) - SHOWN} more that follow from these (--json has all).")
    lines += [f"Left out: {each}" for each in passed_over[:1]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _stall(stall: Stall, *, first: bool) -> list[str]:
    mark = "Follows:" if stall.consequence else "Cause:  " if first else "Also:   "
    lines = [f"{mark} {stall.sentence}"]
    if stall.source is not None:
        lines.append(f"    {format_source(stall.source)}, in {stall.source.function or '?'}")
    return [*lines, *(f"    {each}" for each in stall.evidence)]


def to_json(found: Triage) -> str:
    """All of it; each stall with its sentence."""
    stalls = [{**msgspec.to_builtins(stall), "sentence": stall.sentence} for stall in found.stalls]
    whole = {"ranks": found.ranks, "absent": found.absent, "checked": found.checked, "stalls": stalls}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
