"""ST42x: slow ways to a result that the text of a function shows, with the expression that is faster."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from steptime.advice.evidence import Case
from steptime.advice.kernels import plain_name, shapes_of
from steptime.advice.line_evidence import function_of, line_times, steady_time
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.advice.savings import in_step, modelled, named, ratio
from steptime.advice.written_ways import Passes, Way, Written, passes_of, written_ways
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.quantities import SourceLine, format_source
from steptime.recording.recording import FunctionText

LEAST = 0.03
"""Fraction of the step in a slow way, from which on it is reported."""
GENERAL = (
    "dominant-operator", "memory-bound-pointwise", "dispatch-loop", "outside-model", "python-time", "metrics-in-step",
    "overhead-bound", "large-part",
)  # fmt: skip
"""Rules that say where the time goes, and not what is faster."""
MOST_TAKEN = 0.5
"""Fraction of a tensor's numbers from which on sorting it is no slow way to them."""
MODULE_CALL = "torch.nn.modules.module.Module._wrapped_call_impl"
FEWER, SURELY_FEWER = 0.7, 0.3
"""Fractions of the small operators of passes that run as one which are likely and surely saved: 34 to 62 % of three
passes, that is 0.5 to 0.93 of two thirds (multi-layer perceptrons, torch 2.13, one thread)."""


@rule("ST421", "better-way", supersedes=GENERAL, by_line=True)
def better_way(step: StepSummary, texts: tuple[FunctionText, ...], case: Case) -> Iterator[Finding]:
    """An expression has a faster one for the same result

    What it means: The inverse of a matrix that is only multiplied, a matrix filled with zeros around its diagonal, a
    normal distribution that factors such a matrix, a sort of which a few numbers are taken, all products or distances
    for those of equal rows, a tensor that a loop joins to itself again and again, a list of calls of which one result
    is picked, and Python's own sum, max or sorted of a tensor compute far more than the result needs.

    How we know: The text of the functions that take most of the time is recorded, and its expressions are compared as
    trees. A name that is bound once and read once stands for its expression, so that a result that is needed elsewhere
    is left alone. The line was seen to call the function, or Python's iteration over a tensor; its time is that of its
    operators in the profile, or of the line. The part that is saved was measured in several sizes; the interval is as
    wide as these differ.

    What helps: The expression that the finding gives. Results are the same but for rounding.

    When to ignore it: When the result is needed elsewhere in a way that the function does not show.
    """
    if step.device != "cpu":
        return
    for text in texts:
        for written in written_ways(text):
            spent, way = _spent(written, text, case), written.way
            if ratio(spent, step.duration.value) >= LEAST and _holds(written, text, case):
                source = _source(text, written.lines[-1], case)
                yield better_way.finding(
                    f"{way.what}: {in_step(spent, step)}",
                    written.better,
                    modelled(way.likely * spent, way.sure * spent, way.most * spent, step.steady),
                    source=source,
                    evidence=(source.text,) if source.text else (),
                )


def _spent(written: Written, text: FunctionText, case: Case) -> float:
    """ns per step of a slow way; 0 where its line was not seen to call what it does."""
    called = {fact.line: {name.rpartition(".")[2] for name in fact.names} for fact in case.called if _is_in(fact, text)}
    way, lines = written.way, set(written.lines)
    if way.seen and not any(way.seen & called.get(line, set()) for line in lines):
        return 0.0
    own = [use for use in case.operators if use.source is not None and _holds_place(text, use.source)]
    chosen = [use for use in own if plain_name(use.name) in way.operators and (way.trained or use.phase != "backward")]
    spent = _line_spent(text, case)
    if chosen:
        calling = {line for line, names in called.items() if names & (way.seen | way.operators)} | lines
        alike = sum(spent.get(line, 0.0) for line in calling)
        part = ratio(sum(spent.get(line, 0.0) for line in lines), alike) or len(lines) / len(calling)
        return part * steady_time(chosen, case.operators, case.categories, case.machine)
    return sum(spent.get(line, 0.0) * _share(way, text, line, called.get(line, ()), case) for line in lines)


def _share(way: Way, text: FunctionText, line: int, names: Collection[str], case: Case) -> float:
    """Fraction of a line's time in the way's operators."""
    if not way.operators:
        return 1.0
    runs = [run for run in case.runs if not run.whole and run.source.line == line and _is_in(run.source, text)]
    shares = [run.share for run in runs if plain_name(run.name) in way.operators]
    return min(1.0, sum(shares)) if runs else ratio(len(way.seen.intersection(names)), len(names))


def _holds(written: Written, text: FunctionText, case: Case) -> bool:
    """False for a part that is not taken along the sorted axis, or not small, or where that is not known."""
    if not written.last:
        return True
    lines = set(written.lines)
    runs = [run for run in case.runs if not run.whole and run.source.line in lines and _is_in(run.source, text)]
    runs = runs or [run for run in case.runs if run.whole and _holds_place(text, run.source)]
    shapes = [shapes_of(run.shapes)[:1] for run in runs if plain_name(run.name) in written.way.operators]
    ranks = {len(shape) for each in shapes for shape in each}
    sizes = {shape[-1] for each in shapes for shape in each if shape}
    fits = written.axis is None or ranks == {written.axis + 1}
    return fits and (not written.taken or not sizes or written.taken <= MOST_TAKEN * min(sizes))


def _line_spent(text: FunctionText, case: Case) -> dict[int, float]:
    """ns per step of each line of a function, with what it calls outside of the user's functions."""
    found: dict[int, float] = {}
    for path in case.paths:
        if path.lines and _is_in(path.lines[0], text):
            found[path.lines[0].line] = found.get(path.lines[0].line, 0.0) + path.duration
    timed = [time for time in line_times(case.lines, case.phases) if _is_in(time.line.source, text)]
    return found | {time.line.source.line: time.duration.value for time in timed}


def _is_in(place: object, text: FunctionText) -> bool:
    """True for a line of a function's text."""
    file, line = getattr(place, "file", ""), getattr(place, "line", 0)
    return file == text.file and text.first_line <= line < text.first_line + text.text.count("\n") + 1


def _holds_place(text: FunctionText, source: SourceLine) -> bool:
    """True if a trace's function, whose path is shortened, is this one."""
    same = function_of(source) == function_of(SourceLine(text.file, text.first_line, text.function))
    return same and source.line == text.first_line


def _source(text: FunctionText, line: int, case: Case) -> SourceLine:
    words = text.text.splitlines()[line - text.first_line : line - text.first_line + 1]
    return SourceLine(text.file, line, text.function, words[0].strip() if words else "")


@rule("ST422", "passes-apart", supersedes=("overhead-bound",))
def passes_apart(
    step: StepSummary,
    texts: tuple[FunctionText, ...],
    modules: tuple[ModuleUse, ...],
    operators: tuple[OperatorUse, ...],
    categories: tuple[CategoryUse, ...],
    case: Case,
) -> Iterator[Finding]:
    """A module runs several times in a step, and no pass needs another's result

    What it means: Anchor, positive and negative, the views of an image or the sides of a pair go through the same
    module one after the other. Each pass dispatches all its operators, forward and backward; one pass over all of them
    dispatches them once.

    How we know: The text of the function that calls the module shows that no call takes what another gave, and that no
    backward pass and no update is between them. The lines were seen to call a module, and the profile has its passes
    and its parameters. Of its time the part counts that small operators and their dispatch have in the step: large
    operators take as long in one pass.

    What helps: torch.cat of the inputs, one pass, and split of the result.

    When to ignore it: When the module has batch norm, whose statistics would be those of all inputs, or when the inputs
    differ in size.
    """
    launch = named(categories, "overhead")
    if step.device != "cpu" or launch is None:
        return
    small = sum(use.duration for use in operators if use.bound == "latency") + launch.duration.value
    part = ratio(small, sum(use.duration for use in operators) + launch.duration.value)
    for text in texts:
        for passes in passes_of(text):
            module = _module(passes, text, modules, case)
            if module is None:
                continue
            count = passes.count or module.calls
            spent = module.share * step.duration.value
            saved = part * spent * (1 - 1 / count)
            if ratio(FEWER * saved, step.duration.value) >= LEAST:
                source = _source(text, passes.lines[0], case)
                yield passes_apart.finding(
                    f"{passes.function} runs {count:.0f} times apart at {format_source(source)}: {in_step(spent, step)}",
                    f"Join the inputs with torch.cat, call {passes.function} once, and split the result (not with batch "
                    "norm, whose statistics would change).",
                    modelled(FEWER * saved, SURELY_FEWER * saved, saved, step.steady),
                    source=source,
                    evidence=(source.text,) if source.text else (),
                )


def _module(passes: Passes, text: FunctionText, modules: tuple[ModuleUse, ...], case: Case) -> ModuleUse | None:
    """The module with parameters that these calls run; None where that is not certain."""
    called = {fact.line: fact.names for fact in case.called if _is_in(fact, text)}
    if not all(MODULE_CALL in called.get(line, ()) for line in passes.lines):
        return None
    owner, _, name = passes.function.rpartition(".")
    known = [use for use in modules if use.parameters and use.calls >= max(2, passes.count)]
    if owner:
        known = [use for use in known if use.path.rpartition(".")[2] == name]
    else:
        known = [use for use in known if use.depth == min(each.depth for each in known)]
    return known[0] if len(known) == 1 else None
