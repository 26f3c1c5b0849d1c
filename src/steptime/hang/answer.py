"""The answer of `steptime hang`: the collective that does not end, the rank that the job waits for, and its line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from steptime.answer.answer import Answer, Item, Section
from steptime.hang.triage import HangTriage, Stall, counted_ranks, first_suspects, no_dump
from steptime.quantities import format_count
from steptime.report.sentences import place_text


def answer_of(found: HangTriage, passed_over: Sequence[str] = (), more: str = "") -> Answer:
    """Answer of a triage. passed_over: sentences on files that could not be read. more: command that also shows the
    stalls that are consequences of others."""
    head = f"{format_count(len(found.ranks), 'dump')} ({counted_ranks(found.ranks)})"
    head += f", {format_count(found.checked, 'collective')} compared"
    displayed = _one_of_each_cause(found.stalls)
    rest = [stall for stall in found.stalls if stall not in displayed]
    return Answer(
        title="Why the job hangs",
        headline=_headline(found, displayed),
        head=(f"{head}; {no_dump(found.absent)}." if found.absent else f"{head}.",),
        parts=(
            Section("", tuple(_item(stall, first=not number) for number, stall in enumerate(displayed))),
            Section("Consequences", tuple(_item(stall, first=False) for stall in rest), 0),
        ),
        notes=tuple(f"Left out: {each}" for each in passed_over),
        more=more,
        data={**msgspec.to_builtins(found), "stalls": [{**msgspec.to_builtins(each), "sentence": each.sentence}
                                                       for each in found.stalls]},
    )  # fmt: skip


def _headline(found: HangTriage, displayed: Sequence[Stall]) -> str:
    if not found.stalls:
        return _nobody_waits(found)
    waits = f"The job waits for {counted_ranks(found.to_blame)}. " if len(found.to_blame) > 1 else ""
    place = f" ({place_text(source)})" if (source := displayed[0].source) is not None else ""
    return f"{waits}{displayed[0].sentence}{place}"


def _one_of_each_cause(stalls: Sequence[Stall]) -> list[Stall]:
    """Stalls without those that blame only ranks already blamed by an earlier stall."""
    displayed: list[Stall] = []
    blamed: set[int] = set()
    for stall in stalls:
        if not stall.culprits or not blamed.issuperset(stall.culprits):
            displayed.append(stall)
            blamed.update(stall.culprits)
    return displayed


def _nobody_waits(found: HangTriage) -> str:
    """Advice if no rank waits. It starts with a rank without a dump: if one dies, gloo ends the calls of the others."""
    if found.absent:
        return (
            f"No rank with a dump waits in a collective. The {first_suspects(found.absent)}, without a dump: "
            "dead, or stuck in its own code. Read its output; if it still runs: py-spy dump --pid PID"
        )
    message = (
        "According to the dumps, no rank waits in a collective: all calls finished and agree. Find a rank "
        "that hangs elsewhere (input, a lock, a checkpoint) with: py-spy dump --pid PID"
    )
    unknown = " The dumps do not contain the number of ranks: --world-size N lists those without a dump."
    return message if found.whole else message + unknown


def _item(stall: Stall, *, first: bool) -> Item:
    mark = "Follows:" if stall.consequence else "Cause:" if first else "Also:"
    function = f", in {stall.source.function}" if stall.source is not None and stall.source.function else ""
    place = f"{place_text(stall.source)}{function}" if stall.source is not None else ""
    return Item(f"{mark} {stall.sentence}", place=place, lines=stall.evidence)
