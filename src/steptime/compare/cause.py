"""Likely cause of a step's change, and the whole comparison in one sentence.

First comes the category that changed most with the step. Then a differing setting that can change this category, the
most specific first. Then the part of the step that changed most. The cause is only likely: nothing was tried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.advice.verdict import WORDS
from steptime.compare.comparison import Comparison, Difference, DifferenceOutcome, Fate, LikelyCause, Piece, Setting
from steptime.quantities import Estimate, format_change, format_duration, format_share
from steptime.report.compose import IN_WORKERS, WORKERS

NEARLY_ALL = 0.9
EXPLAINS = 0.4
"""Fraction of the step's change: a category that changed by less does not explain it alone."""
ALL = frozenset(WORDS)
MODEL = frozenset({"compute", "overhead", "forward", "backward", "optimizer", "evaluation", "compile", "sync"})
HOST = frozenset({"overhead", "python", "input", "compute", "forward", "backward", "optimizer", "rest", "sync"})


CLEAR = (DifferenceOutcome.MORE, DifferenceOutcome.LESS)


@dataclass(frozen=True, slots=True)
class Effect:
    """Categories that a setting can change. sign: 1 if a larger value makes the step longer, -1 shorter, 0 for
    either."""

    categories: frozenset[str]
    sign: int = 0


_INPUT = frozenset({"input"})
EFFECTS = {
    WORKERS: Effect(_INPUT, -1),
    "prefetch factor": Effect(_INPUT),
    "persistent workers": Effect(_INPUT, -1),
    "batched fetch": Effect(_INPUT, -1),
    "dataset": Effect(_INPUT),
    "collate function": Effect(_INPUT),
    "pinned memory": Effect(frozenset({"copy", "transfer", "input", "sync"})),
    "batch size": Effect(ALL - {"overhead", "compile"}, 1),
    "micro-batches per step": Effect(ALL, 1),
    "another profiler": Effect(ALL, 1),
    "anomaly detection": Effect(HOST, 1),
    "deterministic algorithms": Effect(MODEL, 1),
    "cudnn.benchmark": Effect(MODEL),
    "cudnn.deterministic": Effect(MODEL),
    "float32 matmul precision": Effect(MODEL),
    "denormals flushed": Effect(MODEL),
    "autocast": Effect(MODEL | {"copy"}),
    "dtypes of the kernels": Effect(MODEL | {"copy"}),
    "compiled functions": Effect(MODEL | {"python"}),
    "model": Effect(MODEL | {"communication", "copy"}),
    "threads in an operator": Effect(HOST),
    "OMP_NUM_THREADS": Effect(HOST),
    "distributed backend": Effect(frozenset({"communication"})),
    "ranks": Effect(frozenset({"communication", "compute", "input", "python"})),
    "world size": Effect(frozenset({"communication"})),
    "trainers on the host": Effect(ALL, 1),
    "usable CPUs": Effect(HOST, -1),
    "changes of a trial": Effect(ALL),
    "device": Effect(ALL),
}
"""Effects by the name of a setting. Settings that are not here (commit, command, torch, host) can change anything, and
are considered last."""
GENERAL = ("command", "commit", "torch", "Python", "host", "device")
"""Settings that can change anything, the most specific first."""


MOVED = 0.5
"""Fraction of a category's change that another one changes in the other direction, from which on the time moved between
the two. Which of them an operator's time counts for depends on which steps were profiled."""


def cause_of(
    step: Difference, parts: Sequence[Difference], settings: Sequence[Setting], pieces: Sequence[Piece]
) -> LikelyCause:
    """Likely cause of the step's change or, if the step did not change, of the category that changed beyond noise; else
    an empty cause."""
    clear = step.outcome in CLEAR
    name, moved = _carrier_of(step, parts, clear=clear)
    whole = step.change.value if clear and step.change is not None else moved
    if not whole:
        return LikelyCause("")
    share = moved / whole if name and clear else None
    setting = _setting(name, settings, whole) if share is None or share >= EXPLAINS else None
    setting = setting or _general(settings)
    piece = _piece(pieces, whole, name)
    reported = f"likely because of {_set(setting)}" if setting is not None else "no known setting changed"
    if piece is not None and (setting is None or setting.name in GENERAL):
        reported += f"; {_piece_words(piece)}"
    return LikelyCause(reported, name, share, setting.name if setting else "", piece.name if piece else "")


def _carrier_of(step: Difference, parts: Sequence[Difference], *, clear: bool) -> tuple[str, float]:
    """(category that changed most beyond noise, its change in ns), in the step's direction if that is clear; ("", 0)
    for none."""
    moved = [
        (part.name, part.change.value)
        for part in parts
        if part.change is not None and (part.outcome is step.outcome if clear else part.outcome in CLEAR)
    ]
    return max(moved, key=lambda each: abs(each[1]), default=("", 0.0))


def _setting(category: str, settings: Sequence[Setting], whole: float) -> Setting | None:
    """Setting that can change a category in this direction: another device first, then the most specific one."""
    able: list[tuple[int, Setting]] = []
    for setting in settings:
        base = re.sub(r" \d+$", "", setting.name)
        effect = Effect(MODEL) if base in ("optimizer", "parameters") else EFFECTS.get(setting.name)
        if effect is not None and category in effect.categories and _agrees(effect, setting, whole):
            able.append((0 if setting.name == "device" else len(effect.categories), setting))
    return min(able, key=lambda each: each[0])[1] if able else None


def _agrees(effect: Effect, setting: Setting, whole: float) -> bool:
    before, after = _number(setting.before), _number(setting.after)
    if not effect.sign or before is None or after is None or before == after:
        return True
    return (after - before) * effect.sign * whole > 0


def _number(text: str) -> float | None:
    if text in ("on", IN_WORKERS):
        return 1.0
    if text == "off":
        return 0.0
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else None


def _general(settings: Sequence[Setting]) -> Setting | None:
    found = [setting for setting in settings if setting.name in GENERAL]
    return min(found, key=lambda setting: GENERAL.index(setting.name), default=None)


def _set(setting: Setting) -> str:
    the = "the " if setting.kind == "code" else ""
    return f"{the}{setting.name}: {setting.before} before, {setting.after} now"


def _piece(pieces: Sequence[Piece], whole: float, category: str) -> Piece | None:
    """Part that changed most with the step, of the category if its own parts are known."""
    along = [piece for piece in pieces if piece.change * whole > 0 and abs(piece.change) >= EXPLAINS * abs(whole)]
    own = [piece for piece in along if piece.category == category and category] or along
    return max(own, key=lambda piece: abs(piece.change), default=None)


def _piece_words(piece: Piece) -> str:
    named = f"the {piece.kind} “{piece.name}”" if piece.kind != "idle" else f"idle time, {piece.name},"
    if piece.fate in (Fate.APPEARED, Fate.VANISHED):
        return f"{named} {piece.fate.value} ({format_duration(abs(piece.change))} per step)"
    before, after = format_duration(piece.before or 0.0), format_duration(piece.after or 0.0)
    return f"{named} {piece.fate.value} from {before} to {after} per step"


def sentence_of(comparison: Comparison) -> str:
    step, cause = comparison.step, comparison.cause
    if step.before is None or step.after is None or step.change is None:
        return "No comparison: one side has no measured step."
    if step.outcome is DifferenceOutcome.UNDECIDED and step.reason:
        before, after = format_duration(step.before.value), format_duration(step.after.value)
        return f"No verdict: {step.reason}. Measured: {before} → {after}."
    if step.outcome not in CLEAR:
        inside = _inside(comparison)
        if inside:
            found = "is within noise" if step.outcome is DifferenceOutcome.NONE else "noise may explain"
            return f"{inside}; the step itself is {_signed(step.change)} ({relative_interval(step)}), which {found}."
        alike = format_duration(abs(step.change.value)).startswith("0 ")
        message = f"step is {'as long' if alike else _signed(step.change)} ({relative_interval(step)})"
        none = step.outcome is DifferenceOutcome.NONE
        return f"No difference found: the {message}." if none else f"The {message}, which noise may explain."
    word = "longer" if step.outcome is DifferenceOutcome.MORE else "shorter"
    size = f"{format_duration(abs(step.change.value))} ({relative_interval(step)}) {word}"
    return f"The step is {size}{_carrier(cause)}: {cause.sentence}."


def _carrier(cause: LikelyCause) -> str:
    """Clause such as ", 97 % of it waiting for input"."""
    if cause.share is None or not cause.category:
        return ""
    words = WORDS.get(cause.category, cause.category)
    if cause.share > 1.05:
        return f", more than all of it {words}"
    return f", {'nearly all' if cause.share >= NEARLY_ALL else format_share(cause.share)} of it {words}"


def relative_interval(difference: Difference) -> str:
    """Relative change as text: "−34 %, −38 to −30 %"."""
    change = relative(difference)
    if change is None:
        return ""
    low, high = format_change(change.low), format_change(change.high)
    return f"{format_change(change.value)}, {low.removesuffix(' %')} to {high}"


def relative(difference: Difference) -> Estimate | None:
    """Change as a fraction of the earlier value; None if that was zero or is unknown."""
    if difference.change is None or difference.before is None or difference.before.value <= 0:
        return None
    change, base = difference.change, difference.before.value
    return Estimate(change.value / base, change.low / base, change.high / base, change.samples, "1")


def _inside(comparison: Comparison) -> str:
    """Sentence on time that moved within an unchanged step; "" for none."""
    moved = next((part for part in comparison.parts if part.name == comparison.cause.category), None)
    if moved is None or moved.change is None:
        return ""
    against = [part for part in comparison.parts if part.change and part.change.value * moved.change.value < 0]
    other = max(against, key=lambda part: abs(part.change.value) if part.change else 0.0, default=None)
    if other is not None and other.change and abs(other.change.value) > MOVED * abs(moved.change.value):
        names = [WORDS.get(part.name, part.name) for part in (moved, other)]
        return (
            f"{names[0][:1].upper()}{names[0][1:]} is {_signed(moved.change)} and {names[1]} {_signed(other.change)}: "
            "time moved between them"
        )
    others = sum(part.outcome in CLEAR for part in comparison.parts) - 1
    more = f" (and {others} more categor{'ies' if others > 1 else 'y'} moved)" if others else ""
    words = WORDS.get(moved.name, moved.name)
    return f"{words[:1].upper()}{words[1:]} is {_signed(moved.change)}, beyond noise{more}: {comparison.cause.sentence}"


def _signed(change: Estimate) -> str:
    """Text such as "1.2 ms longer"."""
    return f"{format_duration(abs(change.value))} {'longer' if change.value > 0 else 'shorter'}"
