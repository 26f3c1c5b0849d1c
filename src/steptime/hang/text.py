"""What was found, as a text for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.hang.triage import HangTriage, Stall, counted_ranks, first_suspects, no_dump
from steptime.quantities import format_count
from steptime.report.sentences import place_text

SHOWN = 5
"""Stalls that the text shows: the others follow from the first."""


def as_text(found: HangTriage, passed_over: Sequence[str] = ()) -> str:
    """The whole text, with a line feed at its end."""
    head = f"{format_count(len(found.ranks), 'dump')} ({counted_ranks(found.ranks)})"
    head += f", {format_count(found.checked, 'collective')} compared"
    lines = [f"{head}; {no_dump(found.absent)}." if found.absent else f"{head}.", ""]
    if not found.stalls:
        lines += _nobody_waits(found)
    for number, stall in enumerate(found.stalls[:SHOWN]):
        lines += [*_stall(stall, first=not number), ""]
    if len(found.stalls) > SHOWN:
        lines.append(f"… and {len(found.stalls) - SHOWN} more that follow from these (--json has all).")
    lines += [f"Left out: {each}" for each in passed_over[:1]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _nobody_waits(found: HangTriage) -> list[str]:
    """Where to look instead: at a rank that left no dump first, as gloo ends the calls of the others when one dies."""
    if found.absent:
        suspects = first_suspects(found.absent)
        return [
            f"No rank with a dump waits in a collective. The {suspects}, of which there is no dump:",
            "dead, or stuck in its own code. Read its output; while it lives: py-spy dump --pid PID",
        ]
    lines = [
        "No rank waits in a collective, as far as the dumps go: all that was called is done and agrees.",
        "A rank that hangs elsewhere (input, a lock, a checkpoint) shows in: py-spy dump --pid PID",
    ]
    unknown = "The dumps do not say how many ranks the job has: with --world-size N those without a dump are named."
    return lines if found.whole else [*lines, unknown]


def _stall(stall: Stall, *, first: bool) -> list[str]:
    mark = "Follows:" if stall.consequence else "Cause:  " if first else "Also:   "
    lines = [f"{mark} {stall.sentence}"]
    if stall.source is not None:
        function = f", in {stall.source.function}" if stall.source.function else ""
        lines.append(f"    {place_text(stall.source)}{function}")
    return [*lines, *(f"    {each}" for each in stall.evidence)]


def to_json(found: HangTriage) -> str:
    """All of it; each stall with its sentence."""
    stalls = [{**msgspec.to_builtins(stall), "sentence": stall.sentence} for stall in found.stalls]
    document = msgspec.to_builtins(found) | {"stalls": stalls}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
