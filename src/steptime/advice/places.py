"""Findings about a place say what runs there: one sentence of evidence, and advice for what takes most of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from steptime.advice.evidence import Case, PathUse, RunUse
from steptime.advice.kernels import elements, plain_name, shapes_of
from steptime.advice.line_evidence import function_of, is_same_line
from steptime.advice.line_ways import body_of, way_of_line
from steptime.advice.python_rounds import LONGEST_ROUND, MANY_ROUNDS, ONCE, rounds_in
from steptime.advice.rule import LONGEST_SUMMARY, Finding, Weight
from steptime.advice.savings import WORKING, ratio
from steptime.advice.seldom_read import made_in_vain
from steptime.advice.verdict import GROWTH
from steptime.advice.what_runs import LEAST_SHARE, OTHER_NAMES
from steptime.quantities import SourceLine, format_share, format_source

MOST, MOST_OF_FINDING = 0.5, 0.4
"""Fractions of a place's time and of a finding's savings: what takes so much is what the advice is about. The latter is
less, as lines are timed in other steps than those that savings are of."""
MANY = 16
"""Calls per step from which on they are worth joining into one."""
NEEDED = " needs it: "
"""In advice on what no step can do without, which is never done less often."""
NESTED = 4
"""Calls of one name below one call of it from which on something is wrapped again and again."""
DEEPER = 1.5
"""Times as many of them as earlier in the run, for them to become more with the steps."""
READ_ONCE = "read it once and keep the result, or only the part that is used."
IT_WAITS = "it waits: do it in another thread, or for many steps at once."
JOINED = "it copies all that it joins: write into one preallocated array, or join only what is used."
NEEDED_BY_BATCHES = frozenset({READ_ONCE, IT_WAITS, JOINED})
"""Advice on what a batch cannot be made without, as a rule."""
KINDS = tuple(
    (re.compile(rf"(?:{names})_?"), advice)
    for names, advice in (
        (
            r"(?:linalg_)?_?(?:eigh?|eigvalsh?|svd|svdvals|qr|cholesky\w*|inv\w*|pinv|solve\w*|lstsq|matrix_exp|lu\w*"
            r"|slogdet|det|logdet|matrix_power|geqrf|householder_product)",
            "where its input hardly changes from step to step, compute it every n-th step and reuse the result.",
        ),
        (
            r"histc|histogram\w*|bincount|\w*unique\w*|quantile|nanquantile|kthvalue|median|mode|percentile",
            "take such statistics every n-th step, or of a part.",
        ),
        (
            r"\w*sort\w*|topk|searchsorted",
            "sort only what is new, take topk where a few are wanted, or do it less often.",
        ),
        (
            r"cat|stack|[hvd]stack|concat\w*|append|insert",
            JOINED,
        ),
        (
            r"deepcopy|copy|clone|tolist|tobytes",
            "it copies all that it is given: copy only what is used, or what is new.",
        ),
        (
            r"write\w*|flush|save\w*|imwrite|imsave|to_csv|to_json|dump|fsync",
            "write only what is new (append), less often, or from another thread.",
        ),
        (
            r"dumps|b64encode|encode\w*|compress|pformat|iterencode",
            "encode only what is new, less often, or in another thread.",
        ),
        (
            r"loads?|decode\w*|decompress|imread|read\w*|open|fromstring|parse\w*|genfromtxt|loadtxt",
            READ_ONCE,
        ),
        (
            r"interpolate|\w*upsample\w*|grid_sampl\w*|resize\w*|rotate|warp\w*|resample\w*|\w*affine\w*|zoom|rescale",
            "crop first, and resample only what is kept; or resample each input once and keep it.",
        ),
        (
            r"(?:as_)?tensor|from_numpy|(?:as)?array|item|_local_scalar_dense|float|int",
            "convert once, or only the entries that are used: select them first.",
        ),
        (r"i?glob|listdir|scandir|r?walk|i?terdir|stat|exists|is_file", "list it once, and keep the result."),
        (r"randperm|multinomial|choice\w*|permutation|shuffle|sample", "draw for many batches at once."),
        (
            r"sleep|request\w*|urlopen|recv\w*|send\w*|getresponse|connect",
            IT_WAITS,
        ),
    )
)
"""Last names of what runs, and what helps where it takes most of a place."""
OF_THE_LOADER = ("Make an item ", "More workers ", "Set num_workers=")
"""Starts of advice that stays true when the line is written better."""
WRAPPERS = re.compile(r"__(?:getitem|call|len|iter|next|getattr)__|forward|wrapper")


def with_what_runs(finding: Finding, case: Case, *, general: bool, speaks: bool = True) -> Finding:
    """The finding with what runs at its place. general: True if its own advice holds for any code. speaks: True if its
    summary and advice are to name what takes most of the place, not only its evidence."""
    place = finding.spent_at
    on_device = finding.category in WORKING and case.step.device != "cpu"  # where the CPU's time says nothing
    if place is None or finding.weight is Weight.CAVEAT or on_device:
        return finding
    # What grows was timed while it was short.
    saved = finding.savings.value if finding.savings is not None and finding.name != GROWTH else 0.0
    levels = [runs for runs in (at_line(place, case), _below(place, case), _in_function(place, case)) if runs]
    enough = (found for found in map(_most_of, levels) if found and _sum(found) >= MOST_OF_FINDING * saved)
    most = next((found for found in enough if finding.category != "python" or not any(map(_is_operator, found))), [])
    runs = most or next(iter(levels), [])
    way = _way(place, case) if speaks else ""
    if speaks and not way and not most:
        way = _rounds(place, chain(*levels), saved, case)
    if not runs:
        return _with_way(finding, way)
    evidence = (f"It runs {' and '.join(_words(run, case) for run in runs[:2])}.", *finding.evidence)
    summary, advice = finding.summary, finding.advice
    if most and speaks:
        names = [short_name(run.name) for run in most]
        mostly = f"{summary}; mostly {' and '.join(names)}"
        often = f"{mostly}, {_times(most[0].calls)}" if len(most) == 1 and most[0].calls else mostly
        if not all(re.search(rf"\b{re.escape(name)}\b", summary) for name in names):
            summary = next((each for each in (often, mostly) if len(each) <= LONGEST_SUMMARY), summary)
        unsaid = [run for run in most if short_name(run.name) not in advice and (general or NEEDED not in advice)]
        about = _about(unsaid) if not way else ""
        advice = about if general and about else " ".join(filter(None, (advice, about)))
    return _with_way(replace(finding, summary=summary, advice=advice, evidence=evidence), way)


def with_way_of_line(finding: Finding, case: Case) -> Finding:
    """The finding with advice on a better way to write its line; unchanged if none is known."""
    way = _way(finding.spent_at, case) if finding.spent_at is not None else ""
    return _with_way(finding, way)


def _way(place: SourceLine, case: Case) -> str:
    mostly = [_last(run) for run in _most_of(at_line(place, case))]
    return made_in_vain(place, case) or way_of_line(place, case, mostly)


def _rounds(place: SourceLine, runs: Iterable[RunUse], spent: float, case: Case) -> str:
    """Advice on Python loops over single values that take a good part of a finding's savings (`spent`, ns per step); ""
    without such loops. It counts how often the lines run, or a Python function in that time."""
    body, timed = body_of(place), [use for use in case.lines if body_of(use.source) == body_of(place)]
    near = [path for path in case.paths if path.lines and body_of(path.lines[0]) == body]
    near = near or [PathUse(use.duration.value, "", (use.source,), use.hits) for use in timed]
    inside = any(path.ran >= MANY_ROUNDS for path in near if is_same_line(path.lines[0], place))
    below = (path for path in case.paths if any(is_same_line(line, place) for line in path.lines))
    rounds = rounds_in(near if inside else below)
    if rounds is not None and rounds.spent >= MOST_OF_FINDING * spent:
        return f"Here {rounds.words}: {rounds.better}"
    run = max((run for run in runs if not _is_operator(run)), key=lambda run: run.calls, default=None)
    if run is None or run.calls < MANY_ROUNDS or not 0 < spent <= LONGEST_ROUND * run.calls:
        return ""
    return (
        f"In {function_of(place)[1]}, {short_name(run.name).removeprefix('builtins.')} runs {_times(run.calls)}: {ONCE}"
    )


def _with_way(finding: Finding, way: str) -> Finding:
    """Finding that advises a better way: in place of its own advice, or before it where that is about the loader."""
    if not way:
        return finding
    return replace(finding, advice=f"{way} {finding.advice}" if finding.advice.startswith(OF_THE_LOADER) else way)


def _most_of(runs: list[RunUse]) -> list[RunUse]:
    """The one or two that take most of a place; [] if they do not."""
    return next((runs[:count] for count in (1, 2) if sum(run.share for run in runs[:count]) >= MOST), [])


def _is_operator(run: RunUse) -> bool:
    return "::" in run.name or run.name in OTHER_NAMES.values()


def _sum(runs: list[RunUse]) -> float:
    return sum(run.duration for run in runs)


def at_line(place: SourceLine, case: Case) -> list[RunUse]:
    """Operators and functions that run at a line, the longest first."""
    return [run for run in case.runs if not run.whole and is_same_line(run.source, place)]


def _below(place: SourceLine, case: Case) -> list[RunUse]:
    """Operators and functions at the lines that a line leads to, the longest first."""
    through = [path for path in case.paths if any(is_same_line(line, place) for line in path.lines[1:])]
    whole, leaves = sum(path.duration for path in through), {path.lines[0].place for path in through}
    found: dict[str, RunUse] = {}
    for run in case.runs:
        if not run.whole and run.source.place in leaves:
            known = found.get(run.name, replace(run, source=place, duration=0.0, calls=0.0))
            spent = min(whole, known.duration + run.duration)
            found[run.name] = replace(known, duration=spent, share=ratio(spent, whole), calls=known.calls + run.calls)
    return sorted((run for run in found.values() if run.share >= LEAST_SHARE), key=lambda run: -run.duration)


def _in_function(place: SourceLine, case: Case) -> list[RunUse]:
    """Operators and functions in a line's function, the longest first."""
    inside = [run for run in case.runs if run.whole and function_of(run.source) == function_of(place)]
    first = max((run.source.line for run in inside if run.source.line <= place.line), default=0)
    return [run for run in inside if run.source.line == first]


def short_name(name: str) -> str:
    """Name of a call as sentences use it: "linalg_eigh" for "aten::linalg_eigh", "numpy.argsort" for a function in one
    of NumPy's private modules."""
    if "::" in name:
        return plain_name(name)
    first, *modules, last = name.split(".") if "." in name else ("", name)
    private = any(each.startswith("_") for each in (first, *modules))
    return (f"{first}.{last}" if first != "torch" else last) if private else name


def _about(runs: Iterable[RunUse]) -> str:
    """Advice for places where these take most of the time: "cat and stack: …"."""
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(advice_on(run), []).append(_last(run))
    return " ".join(f"{' and '.join(dict.fromkeys(each))}: {advice}" for advice, each in names.items() if advice)


def _last(run: RunUse) -> str:
    return short_name(run.name).rpartition(".")[2]


def advice_on(run: RunUse) -> str:
    """Advice for places where an operator or function takes most of the time; "" if none is known."""
    last = _last(run)
    if run.depth >= NESTED and WRAPPERS.fullmatch(last):
        grows = run.depth >= DEEPER * run.shallow
        more = f"{run.depth - 1:.0f} more" + (f" and to {run.shallow - 1:.0f} earlier in the run" if grows else "")
        wrapped = "each step wraps it once more, so that steps grow: " if grows else ""
        return f"each call leads to {more}; {wrapped}unwrap it, or keep plain arrays."
    known = _known(last)
    if not known and run.calls >= MANY:
        known = "call it once, for all of them."
    return known


def _known(last: str) -> str:
    return next((advice for names, advice in KINDS if names.fullmatch(last)), "")


def avoided_by(name: str) -> str:
    """Advice for a call of this name that need not run for each item of a batch; "" for other calls."""
    last = short_name(name).rpartition(".")[2]
    known = _known(last)
    return f"{last}: {known}" if known and known not in NEEDED_BY_BATCHES else ""


def _words(run: RunUse, case: Case) -> str:
    """ "linalg_eigh (98 % of train.py:25, 8 times per step, 96 × 96)"."""
    place = function_of(run.source)[1] if run.whole else format_source(run.source)
    words = [f"{format_share(run.share)} of {place}", *([_times(run.calls)] if run.calls else [])]
    items = (case.loader.batch_size or 0) * case.loader.demand if case.loader is not None else 0.0
    through = (path for path in case.paths if any(is_same_line(line, run.source) for line in path.lines))
    if items and run.calls >= 2 * items and any(path.part == "input" for path in through):
        words[-1] += f", {ratio(run.calls, items):,.3g} for each item"
    shape = max(shapes_of(run.shapes), key=elements, default=())
    words += [" × ".join(map(str, shape))] if shape else []
    return f"{short_name(run.name)} ({', '.join(words)})"


def _times(calls: float) -> str:
    number = f"{calls:,.0f}" if calls >= 99.5 else f"{calls:.3g}"
    return "once per step" if number == "1" else f"{number} times per step"
