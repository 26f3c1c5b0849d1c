"""ST42x: slow ways to a result that the text of a function shows, with the expression that is faster."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from steptime.advice.evidence import Case, RunUse
from steptime.advice.kernels import elements, plain_name, shapes_of
from steptime.advice.line_evidence import function_of, line_times, steady_time
from steptime.advice.loops import LARGEST_OPERATOR
from steptime.advice.models import USUAL_DISPATCH
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import StepSummary
from steptime.advice.savings import NOTHING, in_step, modelled, ratio, summed
from steptime.advice.written_ways import (
    BLOCKS,
    FACTORS,
    ITERATING,
    JACOBIAN,
    KRONECKER,
    ONE_BY_ONE,
    ROWS,
    TOP,
    Passes,
    Way,
    Written,
    is_in,
    passes_of,
    written_ways,
)
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.quantities import Estimate, SourceLine, format_source
from steptime.recording.rule_facts import FunctionText

LEAST = 0.03
"""Fraction of the step in a slow way, from which on it is reported."""
GENERAL = (
    "dominant-operator", "memory-bound-pointwise", "dispatch-loop", "outside-model", "python-time", "metrics-in-step",
    "overhead-bound", "large-part", "passes-through-one-graph",
)  # fmt: skip
"""Rules that say where the time goes, and not what is faster."""
MOST_TAKEN = 0.5
"""Fraction of a tensor's numbers from which on sorting it is no slow way to them."""
LEAST_BUILT, MOST_ROWS = 65_536, 1 / 8
"""Numbers of a Kronecker product from which on its factors are faster, for at most this fraction of its width in rows.
Measured with forward and backward, saved as a fraction of what building takes: 22 to 94 % (width 256 to 1,024, 32 to 64
rows); smaller products and more rows take longer in factors (torch 2.13, one thread)."""
MODULE_CALL = "torch.nn.modules.module.Module._wrapped_call_impl"
FEWER, SURELY_FEWER = 0.65, 0.3
"""Fractions that one pass likely and surely saves of what small operators take in all passes but one. Measured: 61 to
87 % (multi-layer perceptrons of 32 to 128 numbers, two or three passes of 32 to 128 rows, a convolution of 16 by 16
pixels; torch 2.13, one thread). Large operators save nothing, and may take longer."""


@rule("ST421", "better-way", supersedes=GENERAL, by_line=True, at_setting=True)
def better_way(step: StepSummary, texts: tuple[FunctionText, ...], case: Case) -> Iterator[Finding]:
    """An expression has a faster equivalent

    What it means: The expression computes far more than its result needs. Linear algebra: the inverse of a matrix
    that is only multiplied; a matrix of zeros around its diagonal; a normal distribution that factors such a matrix;
    a Kronecker product that is multiplied with few rows. Pairs: products or distances of all pairs of rows, of which
    only those of equal rows are used; pairs of all samples instead of those within each sample; derivatives of all
    rows by all rows. Collections: sorting a tensor to take a few numbers of it; a loop that concatenates to the same
    tensor again and again; calling all members of a list for the result of one. And Python's own sum, max or sorted
    of a tensor.

    How we know: The text of the functions that take most of the time is recorded, and its expressions are compared
    with known slow ones as syntax trees. A name that is bound once and read once is replaced by its expression; a
    result that is used elsewhere is therefore left alone. The line must have been seen to call the slow function, or
    Python's iteration over a tensor. The expression's time is that of its operators in the profile, or of the line.
    The savings are a fraction of it, which was measured in several sizes; the interval is as wide as these
    measurements differ.

    What helps: The expression that the finding gives. Results are the same except for rounding.

    When to ignore it: When the result is used elsewhere in a way that the function does not show.
    """
    if step.device != "cpu":
        return
    found = {
        (written.lines, written.way.what): (written, text) for text in texts for written in written_ways(text, texts)
    }
    large = sum(use.duration for use in case.operators if use.duration > LARGEST_OPERATOR * use.calls)
    for written, text in found.values():
        spent, way = _spent(written, text, case), written.way
        if way is ROWS:  # what small operators take is dispatch, which fewer rows do not save
            spent = min(spent, large)
        saved = modelled(way.likely * spent, way.sure * spent, way.most * spent, step.steady)
        if way is BLOCKS:
            saved = _saved_alone(spent, set(written.lines), text, case)
        if (
            ratio(min(spent, saved.high), step.duration.value) >= LEAST
            and saved.value > 0
            and _holds(written, text, case)
        ):
            took = _line_spent(text, case)
            if way is BLOCKS:
                took = {line: _spent_below({line}, text, case) for line in written.lines}
            lines = sorted(set(written.lines), key=lambda line: -took.get(line, 0.0))
            source = _source(text, lines[0], written.function)
            yield better_way.finding(
                f"{way.what}: {in_step(spent, step)}",
                written.better,
                saved,
                source=source,
                evidence=tuple(_source(text, line).text for line in lines),
            )


def way_at(line: SourceLine, case: Case) -> Written | None:
    """The slow way at a line between the steps; None where none is known there."""
    found = ((written, text) for text in case.texts if is_in(line, text) for written in written_ways(text, case.texts))
    return next(
        (
            written
            for written, text in found
            if line.line in written.lines and _is_seen(written, _called(text, case)) and _holds(written, text, case)
        ),
        None,
    )


def _called(text: FunctionText, case: Case) -> dict[int, set[str]]:
    """Last names of the functions that each line of a function was seen to call."""
    return {fact.line: {name.rpartition(".")[2] for name in fact.names} for fact in case.called if is_in(fact, text)}


def _is_seen(written: Written, called: dict[int, set[str]]) -> bool:
    seen = written.way.seen
    return not seen or any(seen & called.get(line, set()) for line in written.lines)


def _spent(written: Written, text: FunctionText, case: Case) -> float:
    """ns per step of a slow way; 0 where its line was not seen to call what it does."""
    called = _called(text, case)
    way, lines, spent = written.way, set(written.lines), _line_spent(text, case)
    if not _is_seen(written, called):
        return 0.0
    if way is BLOCKS:  # with what its lines call
        return _spent_below(lines, text, case)
    passes = case.passes
    if way is JACOBIAN and passes is not None and is_in(passes.source, text) and passes.source.line in lines:
        return passes.duration.value
    place = SourceLine(text.file, written.first_line, written.function)
    own = [use for use in case.operators if use.source is not None and _is_function(use.source, place)]
    chosen = [use for use in own if plain_name(use.name) in way.operators]
    if chosen:
        calling = {line for line, names in called.items() if names & (way.seen | way.operators)} | lines
        calling = {line for line in calling if line in spent} or lines
        part = ratio(sum(spent.get(line, 0.0) for line in lines), sum(spent.get(line, 0.0) for line in calling)) or 1.0
        return part * steady_time(chosen, case.operators, case.categories, case.machine)
    forward = sum(spent.get(line, 0.0) * _share(way, text, line, called.get(line, ()), case) for line in lines)
    if way.operators or not own:
        return forward
    whole = sum(duration for line, duration in spent.items() if written.first_line <= line <= written.last_line)
    return max(forward, ratio(forward, whole) * steady_time(own, case.operators, case.categories, case.machine))


def _spent_below(lines: set[int], text: FunctionText, case: Case) -> float:
    """ns per step of lines of a function, with those of the user's functions that they call: as each was timed, and
    where it was not, as it was sampled."""
    timed = {use.source.place: use.duration.value for use in case.lines}
    found: dict[tuple[str, int], float] = {}
    for path in case.paths:
        if any(is_in(each, text) and each.line in lines for each in path.lines):
            place = path.lines[0].place
            found[place] = timed.get(place, found.get(place, 0.0) + path.duration)
    return min(sum(found.values()), case.step.duration.value)


def _saved_alone(spent: float, lines: set[int], text: FunctionText, case: Case) -> Estimate:
    """Savings, if each sample of a batch is computed by itself: all pairs but one of so many, less the dispatch of as
    many times the operators. Nothing where the batch or the operators are not known. At 2 to 32 samples with 20 to 300
    rows it was 1.2 to 5.9 µs per operator (torch 2.13, one thread), which small batches do not earn."""
    count = case.loader.batch_size if case.loader is not None else None
    below = {
        path.lines[0].place
        for path in case.paths
        if any(is_in(each, text) and each.line in lines for each in path.lines)
    }
    runs = (run for run in case.runs if not run.whole and run.source.place in below)
    calls = sum(run.calls for run in runs)
    if not count or count < 2 or not calls:
        return NOTHING
    dispatch = (case.machine.dispatch if case.machine is not None else None) or USUAL_DISPATCH
    most = spent * (1 - 1 / count)
    likely, sure = (max(0.0, most - (count - 1) * calls * each) for each in (dispatch, 2 * dispatch))
    return modelled(likely, sure, most, case.step.steady)


def _share(way: Way, text: FunctionText, line: int, names: Collection[str], case: Case) -> float:
    """Fraction of a line's time in the way's operators."""
    runs = [run for run in case.runs if not run.whole and run.source.line == line and is_in(run.source, text)]
    if not way.operators:
        others = sum(run.share for run in runs if plain_name(run.name).rpartition(".")[2] not in ITERATING)
        return 1.0 if way is not ONE_BY_ONE else max(0.0, 1 - others) if runs else ratio(1, len(names))
    shares = [run.share for run in runs if plain_name(run.name) in way.operators]
    return min(1.0, sum(shares)) if shares else ratio(len(way.seen.intersection(names)), len(names))


def _holds(written: Written, text: FunctionText, case: Case) -> bool:
    """False for a part that is not taken along the sorted axis, or not small, for diag of a matrix, which takes its
    diagonal, and for a Kronecker product that is small, or multiplied by many rows; or where that is not known."""
    lines, place = set(written.lines), SourceLine(text.file, written.first_line, written.function)
    runs = [run for run in case.runs if not run.whole and run.source.line in lines and is_in(run.source, text)]
    runs += [run for run in case.runs if run.whole and _is_function(run.source, place)]
    if written.way.fills:
        called = [fact.names for fact in case.called if fact.line in lines and is_in(fact, text)]
        names = {name.rpartition(".")[2] for each in called for name in each}
        ranks = {len(shape) for run in runs if plain_name(run.name) == "diag" for shape in shapes_of(run.shapes)[:1]}
        return "diag" not in names or ranks == {1}
    if written.way is KRONECKER:
        return any(_pays_in_factors(run) for run in case.runs if _is_product(run, written, text))
    if not written.last:
        return True
    shapes = [shape for run in runs if plain_name(run.name) in TOP.operators for shape in shapes_of(run.shapes)[:1]]
    fits = written.axis is None or {len(shape) for shape in shapes} == {written.axis + 1}
    sizes = [shape[-1] for shape in shapes if shape]
    return fits and (not written.taken or not sizes or written.taken <= MOST_TAKEN * min(sizes))


def _is_product(run: RunUse, written: Written, text: FunctionText) -> bool:
    return (
        not run.whole
        and run.source.place == (text.file, written.multiplied)
        and plain_name(run.name) in FACTORS | {"addmm"}
    )


def _pays_in_factors(run: RunUse) -> bool:
    """True for few rows times a matrix that is large enough for its factors to be applied instead."""
    shapes = [shape for shape in shapes_of(run.shapes) if len(shape) > 1]
    matrix = max(map(elements, shapes), default=0)
    rows = min((elements(shape) // shape[-1] for shape in shapes if shape[-1]), default=0)
    return matrix >= LEAST_BUILT and 0 < rows <= MOST_ROWS * matrix**0.5


def _line_spent(text: FunctionText, case: Case) -> dict[int, float]:
    """ns per step of each line of a function, with what it calls outside of the user's functions."""
    inside = [path for path in case.paths if path.lines and is_in(path.lines[0], text)]
    found = summed((path.lines[0].line, path.duration) for path in inside)
    timed = [time for time in line_times(case.lines, case.phases) if is_in(time.line.source, text)]
    return found | {time.line.source.line: time.duration.value for time in timed}


def _is_function(source: SourceLine, place: SourceLine) -> bool:
    """True if a trace's function, whose path is shortened, is the one that starts at a place."""
    return function_of(source) == function_of(place) and source.line == place.line


def _source(text: FunctionText, line: int, function: str = "") -> SourceLine:
    words = text.text.splitlines()[line - text.first_line : line - text.first_line + 1]
    return SourceLine(text.file, line, function or text.function, words[0].strip() if words else "")


@rule("ST422", "passes-apart", supersedes=("overhead-bound",), at_setting=True)
def passes_apart(
    step: StepSummary,
    texts: tuple[FunctionText, ...],
    modules: tuple[ModuleUse, ...],
    operators: tuple[OperatorUse, ...],
    case: Case,
) -> Iterator[Finding]:
    """A module runs several times in a step, and no call needs another's result

    What it means: Anchor, positive and negative, the views of an image or the sides of a pair go through the same
    module one after the other. Each call dispatches all its operators, forward and backward; one call for all
    inputs dispatches them once.

    How we know: The text of the function that calls the module shows two facts: no call uses another's result, and no
    backward pass and no update is between the calls. The lines were seen to call a module, and the profile has its
    passes and its parameters. The savings are 65 % of the time that small operators take in all calls but one. Large
    operators (more than 15 µs) do not count, because they take as long in one call.

    What helps: torch.cat of the inputs, one call, and split of the result.

    When to ignore it: When the module has batch norm, which would use the statistics of all inputs, or when the
    inputs differ in size.
    """
    if step.device != "cpu":
        return
    large = sum(use.duration for use in operators if use.duration > LARGEST_OPERATOR * use.calls)
    found = {passes.lines: (passes, text) for text in texts for passes in passes_of(text)}
    for passes, text in found.values():
        module = _module(passes, text, modules, case)
        if module is None:
            continue
        count, spent = passes.count or module.calls, module.share * step.duration.value
        saved = max(0.0, spent - large) * (1 - 1 / count)
        if ratio(FEWER * saved, step.duration.value) >= LEAST:
            sources = [_source(text, line) for line in passes.lines]
            yield passes_apart.finding(
                f"{passes.function} runs {count:.0f} times on separate inputs "
                f"({format_source(sources[0])}): {in_step(spent, step)}",
                f"Join the inputs with torch.cat, call {passes.function} once, and split the result (not with batch "
                "norm, whose statistics would change).",
                modelled(FEWER * saved, SURELY_FEWER * saved, saved, step.steady),
                source=sources[0],
                evidence=tuple(dict.fromkeys(each.text for each in sources)),
            )


def _module(passes: Passes, text: FunctionText, modules: tuple[ModuleUse, ...], case: Case) -> ModuleUse | None:
    """The module with parameters that these calls run; None where that is not certain."""
    called = {fact.line: fact.names for fact in case.called if is_in(fact, text)}
    if not all(MODULE_CALL in called.get(line, ()) for line in passes.lines):
        return None
    owner, _, name = passes.function.rpartition(".")
    known = [use for use in modules if use.parameters and use.calls >= max(2, passes.count)]
    if owner:
        known = [use for use in known if use.path.rpartition(".")[2] == name]
    else:
        known = [use for use in known if use.depth == min(each.depth for each in known)]
    return known[0] if len(known) == 1 else None
