"""Python loops that call many small operators, and what computing their rounds at once would save."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from steptime.advice.device_uses import MachineUse, RooflineUse
from steptime.advice.evidence import Case, LineUse
from steptime.advice.kernels import REACHABLE
from steptime.advice.line_evidence import calls_function, function_of, lines_around, sampled_lines
from steptime.advice.models import USUAL_DISPATCH
from steptime.advice.savings import modelled, named, ratio, total
from steptime.advice.syntax import tree_of
from steptime.analysis.operators import OperatorUse
from steptime.quantities import Estimate, SourceLine

FEWEST_OPERATORS = 100
"""From one line or function per step: below it, it is no loop over elements."""
LARGEST_OPERATOR = 15_000.0
"""ns: an operator that takes longer on a CPU does enough work to be worth its dispatch (3 to 10 µs in eager mode)."""
FEWEST_ROUNDS = 8
"""Executions of a line per step: a line that runs once, or once per block of a model, is no loop over elements."""
CALLERS = frozenset({"forward", "python"})
"""Roles of lines that call the operators of a loop themselves."""
OF_MODELS = frozenset({"forward", "backward"})
"""Phases whose operators a model's lines call."""
GAINED = 0.5
"""Fraction, where only the two ends are known, of what lies between them: small matmuls joined into a large one do not
reach the machine's rate either, and one of torch's own loops (nn.LSTM) gains in part. Rounds at once saved 19 to 95 %
of a loop's CPU time in six jobs (experts, heads, samples; EPYC, torch 2.13)."""
SEQUENCES = {
    "RNN": "RNN", "LSTM": "LSTM", "GRU": "GRU",
    "RNNCell": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU",
}  # fmt: skip
"""torch.nn's recurrent layers and cells, and the layer that takes a whole sequence in one call."""
JOINS = re.compile(r"^(cat|concat\w*|[hv]?stack|add_?|\w*(index|scatter)_(add|copy|put|reduce)\w*|scatter_?)$")
"""Methods that add to their object or put rows into it, and functions that join tensors."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Operators that one line or function calls in a loop within a step. calls: number of these calls per step; each:
    mean ns of one. idle: ns per step in operators whose work takes no longer than their dispatch. python: ns of Python
    in the loop. slow: ns of matmuls beyond what their arithmetic takes at the machine's rate. lines: number of lines
    that call the operators. spent: ns of timed lines in the loop. rounds: number of rounds per step. caller: line that
    calls the function, if only that was timed. at_once: savings of computing independent rounds at once; None if they
    may depend on each other."""

    source: SourceLine
    calls: float
    each: float
    idle: float
    python: float = 0.0
    slow: float = 0.0
    lines: int = 1
    spent: float = 0.0
    rounds: float = 0.0
    caller: LineUse | None = None
    at_once: Estimate | None = None

    def saving(self, dispatch: Estimate) -> Estimate:
        """Savings without the loop, on a CPU: `at_once` if known; else dispatch, the loop's Python, and at most all of
        the small operators and what matmuls lose by being small. dispatch: the loop's part of the step's overhead."""
        if self.at_once is not None:
            return self.at_once
        sure = Estimate(self.python, self.python, self.python, dispatch.samples)
        likely = self.idle + GAINED * self.slow
        return total((dispatch, sure, modelled(likely, 0.0, self.idle + self.slow, dispatch.samples)))


def loops(case: Case) -> Iterator[Loop]:
    """Yields the loops within a step that call many operators, each at its line or, if not timed, its function."""
    functions: dict[SourceLine, list[OperatorUse]] = {}
    for use in case.operators:
        if use.source is not None and use.phase not in ("optimizer", "input"):  # what the loader does is no overhead
            functions.setdefault(use.source, []).append(use)
    if not functions:  # no profile has stacks
        yield from _by_lines(case)
    timed = {source: lines_around(case.lines, case.paths, source) for source in functions}
    inside: set[SourceLine] = set()
    for source, uses in functions.items():
        if rounds := _rounds(timed[source], case.step.micro_batches):
            free = _are_independent(case, timed[source], rounds)
            below = [each for each in functions if free and not timed[each] and _is_called_in(case, each, rounds)]
            inside.update(below)
            below_uses = [use for each in below for use in functions[each]]
            yield from _looping(case, timed[source], rounds, uses, below_uses, free=free)
    for source, uses in functions.items():
        if not timed[source] and source not in inside:
            yield from _untimed(case, source, uses)


def _by_lines(case: Case) -> Iterator[Loop]:
    """The longest loop of a model, where the time of its lines alone says which of its operators are in it."""
    lines = [line for line in case.lines if line.role == "forward"]
    longest = max(_rounds(lines, case.step.micro_batches), key=lambda line: line.duration.value, default=None)
    if longest is not None:
        place = longest.source.file, longest.source.function
        own = [line for line in lines if (line.source.file, line.source.function) == place]
        rounds, uses = _rounds(own, case.step.micro_batches), [use for use in case.operators if use.phase in OF_MODELS]
        yield from _looping(case, lines, rounds, uses, [], free=_are_independent(case, own, rounds))


def siblings(case: Case) -> tuple[int, str]:
    """(number, class) of the largest group of modules that are of one class and in one list or parent, and run in a
    step; (0, "") if there are few."""
    groups = Counter((each.path.rpartition(".")[0], each.type) for each in case.modules if each.calls)
    (_, kind), count = max(groups.items(), key=lambda item: item[1], default=(("", ""), 0))
    return (count, kind) if count >= FEWEST_ROUNDS else (0, "")


def by_rounds(case: Case, rounds: float = 0.0) -> str:
    """Advice for a loop of the job that calls a recurrent layer or cell of torch.nn in each round; "" if none does.
    rounds: number of rounds per step, 0 if unknown. With one call for 20 to 50 rounds, five loops took 24 to 94 % less
    CPU time (GRU and LSTM of width 100 to 512, batches of 1 to 64; EPYC, torch 2.13)."""
    least = FEWEST_ROUNDS * max(1.0, case.step.micro_batches)
    ready_made = any(use.recurrent for use in case.operators)
    parents = {each.path.rpartition(".")[0] for each in case.modules}  # a class of the job's may be called RNN, too
    called = [
        each
        for each in case.modules
        if each.type in SEQUENCES and each.path not in parents and (ready_made or each.type.endswith("Cell"))
        if each.calls >= least and (not rounds or round(each.calls) == round(rounds))
    ]
    each = max(called, key=lambda use: use.calls, default=None)
    if each is None:
        return ""
    layer = "it" if each.type == SEQUENCES[each.type] else f"nn.{SEQUENCES[each.type]}"
    return (
        f"nn.{each.type} is called {each.calls:.0f} times per step, and {layer} takes a whole sequence in one call: "
        "use that where the inputs of all rounds are known before the loop (teacher forcing)."
    )


def _untimed(case: Case, source: SourceLine, uses: list[OperatorUse]) -> Iterator[Loop]:
    """A function whose lines were not timed, if it calls many operators in a loop."""
    calls = sum(use.calls for use in uses)
    if calls < FEWEST_OPERATORS or source.function == "<module>" or not _may_loop(uses):
        return
    name = function_of(source)[1]
    callers = [use for use in case.lines if use.role in CALLERS and calls_function(use.calls, name)]
    sampled, caller = sampled_lines(case.paths, source), callers[0] if len(callers) == 1 else None
    line = max(sampled, key=lambda line: sampled[line], default=caller.source if caller else source)
    yield Loop(
        source=line,
        calls=calls,
        each=ratio(sum(use.duration for use in uses), calls),
        idle=_idle(uses),
        python=caller.python.value if caller else 0.0,  # its own lines are not timed, the call of it is
        slow=_slow(case.roofline, uses),
        lines=max(1, len(sampled)),
        caller=caller,
    )


def _may_loop(uses: Iterable[OperatorUse]) -> bool:
    """False where a trace's stacks show that nothing is called again and again: one call of a model, and no loop."""
    rounds = [use.rounds for use in uses if use.rounds is not None]
    return not rounds or max(rounds) >= FEWEST_ROUNDS


def _idle(uses: Iterable[OperatorUse]) -> float:
    return sum(use.duration for use in uses if use.bound == "latency")


def _slow(roofline: RooflineUse | None, uses: Iterable[OperatorUse]) -> float:
    """ns that small matmuls take beyond their arithmetic at the machine's rate; none where that is not known.
    Large ones, a model's layers, run near it by themselves."""
    peak = roofline.peak if roofline is not None else None
    if not peak:
        return 0.0
    products = [(use, 1e9 * use.flops / peak) for use in uses if use.flops and use.bound != "latency"]
    small = [(use, ideal) for use, ideal in products if ideal <= LARGEST_OPERATOR * use.calls]
    return sum(max(0.0, use.duration - ideal) for use, ideal in small)


def _rounds(lines: Iterable[LineUse], batches: float) -> list[LineUse]:
    """Lines that run in a loop. batches: micro-batches of a step, each of which runs all lines of the model once."""
    return [line for line in lines if line.role in CALLERS and line.hits >= FEWEST_ROUNDS * max(1.0, batches)]


def _is_called_in(case: Case, source: SourceLine, rounds: Iterable[LineUse]) -> bool:
    """True if a function, of whose lines only samples are known, was seen below lines that run in a loop alone."""
    lines, places = sampled_lines(case.paths, source), {use.source.place for use in rounds}
    paths = [path for path in case.paths if path.lines and path.lines[0] in lines]
    return bool(paths) and all(any(line.place in places for line in path.lines[1:]) for path in paths)


def _looping(
    case: Case,
    lines: list[LineUse],
    rounds: list[LineUse],
    own: list[OperatorUse],
    below: list[OperatorUse],
    *,
    free: bool,
) -> Iterator[Loop]:
    """The longest line of a function that runs in a loop, with the part of the function's operators that loops take.
    lines: of the function; rounds: those in the loop; own: its operators; below: those of functions that
    it calls. free: no round needs the result of another.

    Operators, those of backward with them, are shared out by the time of the lines that can call them: the profile
    knows their function only.
    """
    callers = sum(line.duration.value for line in lines if line.role in CALLERS)
    spent = sum(line.duration.value for line in rounds)
    part = ratio(spent, callers)
    shares = [(use, part) for use in own] + [(use, 1.0) for use in below]
    small = [(use, each) for use, each in shares if use.duration <= LARGEST_OPERATOR * use.calls]
    calls = sum(each * use.calls for use, each in small)
    if calls < FEWEST_OPERATORS:
        return
    top = max(rounds, key=lambda line: line.duration.value)
    yield Loop(
        source=top.source,
        calls=calls,
        each=ratio(sum(each * use.duration for use, each in small), calls),
        idle=sum(each * _idle((use,)) for use, each in small),
        python=sum(line.python.value for line in rounds),
        slow=sum(each * _slow(case.roofline, (use,)) for use, each in shares),
        lines=len(rounds),
        spent=spent,
        rounds=max(line.hits for line in rounds),
        at_once=_at_once(case, shares, spent) if free else None,
    )


def _are_independent(case: Case, lines: Iterable[LineUse], rounds: Sequence[LineUse]) -> bool:
    """True if the rounds of a loop do not need each other's results. lines: lines of the function; if all of them run
    in rounds, the loop is in the functions that call it."""
    own = max(line.hits for line in rounds) >= FEWEST_ROUNDS * min(line.hits for line in lines)
    if own:
        return not is_carried(line.source.text for line in rounds)
    place = rounds[0].source.file, rounds[0].source.function
    chains = [[(line.file, line.function) for line in path.lines] for path in case.paths]
    above = {each for chain in chains if place in chain for each in chain[chain.index(place) + 1 :]}
    looping = _rounds([line for line in case.lines if (line.source.file, line.source.function) in above], 1.0)
    return bool(looping) and not is_carried(line.source.text for line in (*rounds, *looping))


def _at_once(case: Case, shares: Sequence[tuple[OperatorUse, float]], spent: float) -> Estimate | None:
    """Savings of a loop that backward goes through, if its rounds were computed at once. spent: ns of its forward.

    The loop takes `spent` and its part of backward, by the phases' timers. One operator for all rounds saves at least
    the dispatch of the others, and leaves at least the arithmetic. Between the two: copies and small matmuls at the
    roofline. None on a device, and where there is no backward: tensors that are only updated cannot be joined."""
    backward, machine = named(case.phases, "backward"), case.machine
    dispatch = (machine.dispatch if machine is not None else None) or USUAL_DISPATCH
    inside = sum(each * _took(use, dispatch) for use, each in shares if use.phase == "backward")
    if case.step.device != "cpu" or backward is None or not inside:
        return None
    everything = sum(_took(use, dispatch) for use in case.operators if use.phase == "backward")
    whole = spent + backward.duration.value * ratio(inside, everything)
    needs = [(each, *_needed(use, machine)) for use, each in shares]
    sure = min(whole, sum(each * use.calls for use, each in shares) * dispatch)
    likely = max(sure, whole - sum(each * expected for each, expected, _ in needs))
    most = max(likely, whole - sum(each * least for each, _, least in needs))
    return modelled(sure + GAINED * (likely - sure), sure, most, case.step.steady)


def _took(use: OperatorUse, dispatch: float) -> float:
    return use.duration + dispatch * use.calls


def _needed(use: OperatorUse, machine: MachineUse | None) -> tuple[float, float]:
    """ns that an operator's work takes as part of one operator for all rounds: at the roofline, its arithmetic alone,
    because copies into a common result are not needed then. If that is unknown, or the operator is large by itself, its
    duration."""
    rate, copy = (machine.matrix_flops, machine.copy_bytes) if machine is not None else (None, None)
    if use.bytes is None or not copy or (use.flops and not rate):
        return use.duration, use.duration if use.duration > LARGEST_OPERATOR * use.calls else 0.0
    arithmetic = 1e9 * use.flops / (REACHABLE * rate) if use.flops and rate else 0.0
    roofline = min(use.duration, max(arithmetic, 1e9 * use.bytes / copy))
    return roofline, min(roofline, arithmetic)


def is_carried(texts: Iterable[str]) -> bool:
    """True if a round of a loop needs the result of the round before: a variable is assigned a function of its old
    value. A sum, a list that grows and rows that are filled do not count. Also True if a line cannot be parsed. texts:
    lines of the loop."""
    reads: dict[str, set[str]] = {}
    computed: set[tuple[str, str]] = set()
    for text in texts:
        if text.endswith(":"):
            continue
        tree = tree_of(text)
        if tree is None:
            return True
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and statement.value is not None:
                operands = _operands(statement.value)
                within = {name for each in operands if not isinstance(each, ast.Name) for name in _names(each)}
                for target in _names(statement, ast.Store):
                    reads.setdefault(target, set()).update(_names(statement.value))
                    computed.update((target, name) for name in within)
    return any(name == target or target in _behind(name, reads) for target, name in computed)


def _operands(value: ast.expr) -> list[ast.expr]:
    """Operands of a sum or a concatenation: a + b, a.index_add(0, i, b), torch.cat([a, b]); else the value itself."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _operands(value.left) + _operands(value.right)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and JOINS.search(value.func.attr):
        lists = [each.elts if isinstance(each, ast.List | ast.Tuple) else [each] for each in value.args]
        return [value.func.value, *(each for group in lists for each in group)]
    return [value]


def _names(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def _behind(name: str, reads: dict[str, set[str]]) -> set[str]:
    """Variables that a variable depends on."""
    found: set[str] = set()
    left = [name]
    while left:
        fresh = reads.get(left.pop(), set()) - found
        found |= fresh
        left += fresh
    return found
