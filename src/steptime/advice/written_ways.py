"""Slow ways to a result that the text of a function shows, and what is written in the place of each.

Expressions are compared as trees: a method equals the function of its name, and a name that is bound once and read
once, in the same loop, is replaced by its expression."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from steptime.advice.function_scope import ROUNDS, SCOPES, FunctionScope, part_taken, scopes_of, written_call
from steptime.quantities import SourceLine
from steptime.recording.rule_facts import CalledFacts, FunctionText

LONGEST_WORDS = 60
"""Characters of an expression that advice holds."""
UPDATING = frozenset({"backward", "step"})
"""Methods of a training loop; the weights on both sides of a call differ."""


@dataclass(frozen=True, slots=True)
class Way:
    """Slow way to compute something, and a better one. what: name of the slow way. better: advice, with the patterns'
    letters in braces. seen: last names of functions, one of which its lines were seen to call. operators: plain names
    of the operators that the better way saves; empty for all of its lines'. sure, likely, most: fractions of these
    operators' time saved, with what autograd runs for them. patterns: expressions, in which a capital letter is any
    expression and `...` any further arguments."""

    what: str
    better: str
    seen: frozenset[str]
    operators: frozenset[str]
    sure: float
    likely: float
    most: float
    patterns: tuple[str, ...] = ()

    @property
    def fills(self) -> bool:
        """True if the slow way makes a diagonal matrix from a vector."""
        return self.seen is FILLING


@dataclass(frozen=True, slots=True)
class Written:
    """Slow way found in a function, whose text is lines first_line to last_line. lines: lines of the file that compute
    it. better: advice. For a sorted tensor, taken: how many of its numbers are read (0 if unknown) along axis number
    `axis` (None: the last); last: True if it is sorted along the last axis, whatever its number."""

    way: Way
    lines: tuple[int, ...]
    better: str
    function: str = ""
    first_line: int = 0
    last_line: int = 0
    taken: int = 0
    axis: int | None = None
    last: bool = False
    multiplied: int = 0


@dataclass(frozen=True, slots=True)
class Passes:
    """Calls of one function that do not depend on each other's results. function: its name as written. lines: lines of
    the file. count: number of calls; 0 for calls in a comprehension."""

    function: str
    lines: tuple[int, ...]
    count: int


INVERTING = frozenset({"inverse", "linalg_inv", "linalg_inv_ex", "inv"})
PRODUCTS = frozenset({"matmul", "mm", "bmm", "mv"})
FACTORS = PRODUCTS | {"linear"}
KEEPING = frozenset({"t", "transpose", "to", "contiguous", "mul", "add", "div"})
"""Functions whose result is multiplied as their tensor would be."""
FILLING = frozenset({"diag_embed", "diag"})
NORMAL = "torch.distributions.Independent(torch.distributions.Normal({A}, %s), 1) is the same distribution."
INVERSE, FILLED, ROW = (
    "An inverse is computed only to be multiplied",
    "A full diagonal matrix is made only to be multiplied",
    "All products are computed, but only those of equal rows used",
)
WAYS = (
    Way(
        INVERSE, "torch.linalg.solve({A}, {B}) gives the product without the inverse.", INVERTING, INVERTING,
        0.35, 0.65, 0.85, ("inverse(A) @ B",),
    ),
    Way(
        INVERSE, "torch.linalg.solve({A}, {B}, left=False) gives the product without the inverse.", INVERTING,
        INVERTING, 0.35, 0.65, 0.85, ("B @ inverse(A)",),
    ),
    Way(
        FILLED, "{A}.unsqueeze(-1) * {B} is the same product ({A} * {B} for a vector), without the matrix.", FILLING,
        FILLING | PRODUCTS, 0.8, 0.9, 0.99, ("diag_embed(A) @ B", "diag(A) @ B"),
    ),
    Way(
        FILLED, "{B} * {A}.unsqueeze(-2) is the same product, without the matrix.", FILLING,
        FILLING | PRODUCTS, 0.8, 0.9, 0.99, ("B @ diag_embed(A)", "B @ diag(A)"),
    ),
    Way(
        "A diagonal covariance is factored as a matrix", NORMAL % "{B}.sqrt()", FILLING, frozenset(), 0.6, 0.9, 0.99,
        ("MultivariateNormal(A, diag_embed(B))", "MultivariateNormal(A, diag(B))",
         "MultivariateNormal(A, covariance_matrix=diag_embed(B))", "MultivariateNormal(A, covariance_matrix=diag(B))"),
    ),
    Way(
        "A diagonal covariance is factored as a matrix", NORMAL % "{B}", FILLING, frozenset(), 0.6, 0.9, 0.99,
        ("MultivariateNormal(A, scale_tril=diag_embed(B))", "MultivariateNormal(A, scale_tril=diag(B))"),
    ),
    Way(
        ROW, "({A} * {B}).sum(-1) gives only these.", PRODUCTS | {"diag", "diagonal"}, PRODUCTS, 0.4, 0.85, 0.99,
        ("diag(A @ B.T)", "diag(A @ t(B))", "diag(A @ B.mT)", "diag(A @ transpose(B, ...), ...)"),
    ),
    Way(
        ROW, "({A} * {B}).sum() gives it.", PRODUCTS | {"trace"}, PRODUCTS, 0.4, 0.85, 0.99,
        ("trace(A @ B.T)", "trace(A @ t(B))", "trace(A @ B.mT)", "sum(diag(A @ B.T))"),
    ),
    Way(
        "All distances are computed, but only those of equal rows used", "({A} - {B}).norm(dim=-1) gives only these.",
        frozenset({"cdist"}), frozenset({"cdist", "_cdist_forward", "_euclidean_dist"}), 0.5, 0.85, 0.98,
        ("diag(cdist(A, B, ...), ...)",),
    ),
)  # fmt: skip
"""Fractions as measured (torch 2.13, one thread, forward and backward): the inverse 39 to 81 % (six shapes, 16 to 512
rows), with a determinant 28 to 54 %, the filled diagonal 87 to 99 % (four, 32 to 512), the diagonal covariance 61 to
99 % (three), equal rows 41 to 99 % (four, 32 to 1,024 rows); topk for a sort 43 to 98 % (seven, 64 to 100,000 numbers,
half of them to few), one join for many 44 to 76 % (32 to 1,000), one operator for Python's functions 82 to 100 %."""
FACTORED = Way(
    "A matrix is inverted and its determinant computed",
    "If {A} is symmetric and positive definite, one factor gives both: L = torch.linalg.cholesky({A}), then "
    "torch.cholesky_solve(B, L) for the product with B and 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1) for the "
    "logarithm of the determinant.",
    INVERTING,
    INVERTING | {"logdet", "det", "slogdet", "linalg_slogdet", "_linalg_slogdet", "_linalg_det"},
    0.25,
    0.45,
    0.6,
)
TOP = Way(
    "A tensor is sorted for a few of its numbers", "", frozenset({"sort", "argsort", "msort"}),
    frozenset({"sort", "argsort", "msort"}), 0.4, 0.75, 0.97,
)  # fmt: skip
GROWN = Way(
    "A tensor grows by torch.cat in a loop", "Append to a list, and join it once after the loop: torch.cat({A}).",
    frozenset({"cat", "concat", "vstack", "hstack"}), frozenset({"cat", "vstack", "hstack"}),
    0.4, 0.6, 0.95,
)  # fmt: skip
PICKED = Way("All of them run, and one result is picked", "Run the one that is picked: {A}.", frozenset(), frozenset(),
             0.5, 0.6, 0.95)  # fmt: skip
ROWS = Way(
    "Every member computes all rows, and one result per row is picked",
    "Draw {A} first, and run each member only on its own rows: rows = ({A} == number).nonzero().squeeze(1), then "
    "result[rows] = member(x[rows]).",
    frozenset(), frozenset(), 0.2, 0.5, 0.95,
)  # fmt: skip
KRONECKER = Way(
    "A Kronecker product is built in full and only multiplied",
    "Apply its factors to the input one after the other: ({A} @ F.linear(x.unflatten(-1, ({A}.shape[1], {B}.shape[1])),"
    " {B})).flatten(-2) is F.linear(x, torch.kron({A}, {B})); a matrix that it is added to is multiplied by itself.",
    frozenset({"kron"}), frozenset(), 0.2, 0.7, 1.0,
)  # fmt: skip
"""Measured (torch 2.13, one thread): of members' time 63 to 83 % where their operators are large (three to eight
members, 256 to 1,024 rows), -10 to 18 % where these are small, or many gradients go back to few rows; of a Kronecker
product's, 22 to 94 % for few rows, nothing for many (`rules/ways.py`)."""
BLOCKS = Way(
    "Each sample is paired with those of all others, and only its own pairs are read",
    "Compute {A} for each sample by itself, or for padded samples as a batch: the others' pairs are thrown away.",
    frozenset({"split"}), frozenset(), 0.0, 0.5, 1.0,  # what is saved depends on the batch and on the operators
)  # fmt: skip
JACOBIAN = Way(
    "Derivatives of each row by all rows are computed, but only those by its own row used",
    "Where a row's result depends on its own row alone (no batch norm in training mode), {A} gives the same, with "
    "one backward pass for each number of a row's result in place of one for each number of all rows.",
    frozenset({"jacobian", "jacrev", "grad"}), frozenset(), 0.5, 0.9, 0.99,
)  # fmt: skip
"""Measured (torch 2.13, one thread): 54 to 87 % for 4 rows, 91 to 99 % for 24 and 100 (four networks of three layers,
with a backward pass through the derivatives)."""
ONE_BY_ONE = Way(
    "Python goes through a tensor number by number", "", frozenset({"__iter__"}), frozenset(), 0.8, 0.95, 1.0
)
ITERATING = frozenset(
    {"unbind", "add", "select", "gt", "lt", "is_nonzero", "item", "_local_scalar_dense", "sum", "max", "min", "any",
     "all", "sorted", "set", "__iter__", "__bool__", "__hash__", "__len__"}
)  # fmt: skip
"""What runs where Python goes through a tensor."""
BUILT_IN = {
    "sum": "{A}.sum(0)", "max": "{A}.max()", "min": "{A}.min()", "any": "{A}.any()", "all": "{A}.all()",
    "sorted": "{A}.sort().values", "set": "{A}.unique()",
}  # fmt: skip
"""Functions of Python's that go through a tensor, and the expression that does not."""


@dataclass(slots=True)
class _Match:
    """Match of a pattern. letters: expressions by letter; lines: of what was compared, the innermost last."""

    scope: FunctionScope
    letters: dict[str, ast.expr]
    lines: list[int]

    def fits(self, pattern: ast.expr, node: ast.expr) -> bool:
        if isinstance(pattern, ast.Name) and pattern.id.isupper():
            return ast.dump(self.letters.setdefault(pattern.id, node)) == ast.dump(node)
        node = self.scope.meant(node)
        wanted, found = written_call(pattern), written_call(node)
        if wanted is not None:
            self.lines.append(node.lineno)
            return found is not None and wanted[0] == found[0] and self._arguments(wanted[1:], found[1:])
        if isinstance(pattern, ast.Attribute) and isinstance(node, ast.Attribute):
            return pattern.attr == node.attr and self.fits(pattern.value, node.value)
        return False

    def _arguments(
        self,
        wanted: tuple[list[ast.expr], list[ast.keyword]],
        found: tuple[list[ast.expr], list[ast.keyword]],
    ) -> bool:
        (patterns, keywords), (given, named) = wanted, found
        further = bool(patterns) and isinstance(patterns[-1], ast.Constant) and patterns[-1].value is ...
        patterns = patterns[:-1] if further else patterns
        by_name = {each.arg: each.value for each in named}
        pairs = [(each.value, by_name.pop(each.arg, None)) for each in keywords]
        if len(given) < len(patterns) or (not further and (len(given) > len(patterns) or by_name)):
            return False
        pairs += zip(patterns, given, strict=False)
        return all(value is not None and self.fits(pattern, value) for pattern, value in pairs)


@lru_cache(maxsize=256)
def _pattern(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def is_in(place: SourceLine | CalledFacts, function: FunctionText) -> bool:
    """True if a line is in a function's text."""
    end = function.first_line + function.text.count("\n")
    return place.file == function.file and function.first_line <= place.line <= end


def written_ways(function: FunctionText, others: Iterable[FunctionText] = ()) -> tuple[Written, ...]:
    """Slow ways in a function, by line. others: texts of functions that may call it."""
    looks = (_factored, _expressions, _sorted, _grown, _blocks, _jacobians, _picked, _picked_by_row, _one_by_one)
    scopes = scopes_of(function.text, function.first_line)
    elsewhere = [*scopes, *(scope for each in others for scope in scopes_of(each.text, each.first_line))]
    found = [
        replace(each, function=scope.function, first_line=scope.first_line, last_line=scope.last_line)
        for scope in scopes
        for each in (*(each for look in looks for each in look(scope)), *_built(scope, elsewhere))
    ]
    factored = {line for each in found if each.way is FACTORED for line in each.lines}
    found = [each for each in found if each.way.what != INVERSE or factored.isdisjoint(each.lines)]
    return tuple(sorted(found, key=lambda each: each.lines))


def _words(node: ast.expr) -> str:
    text = ast.unparse(node)
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        text = f"({text})"
    return text if len(text) <= LONGEST_WORDS else "…"


def _expressions(scope: FunctionScope) -> Iterator[Written]:
    for node in (each for each in scope.nodes if isinstance(each, ast.expr) and written_call(each) is not None):
        for way in WAYS:
            for text in way.patterns:
                match = _Match(scope, {}, [])
                if match.fits(_pattern(text), node):
                    letters = {letter: _words(value) for letter, value in match.letters.items()}
                    yield Written(way, tuple(match.lines), way.better.format(**letters))
                    break


def _factored(scope: FunctionScope) -> Iterator[Written]:
    """Inverses and determinants of the same expression."""
    calls = [(called, node) for node in scope.nodes if (called := written_call(node)) and called[1]]
    for (name, given, _), node in calls:
        for (other, its, _), at in calls if name == "inverse" else ():
            if other in ("det", "logdet", "slogdet") and ast.dump(its[0]) == ast.dump(given[0]):
                lines = (getattr(node, "lineno", 0), getattr(at, "lineno", 0))
                yield Written(FACTORED, lines, FACTORED.better.format(A=_words(given[0])))


def _constant(node: ast.expr | None) -> int | None:
    """Number that is written."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if inner is not None else None
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _sorted(scope: FunctionScope) -> Iterator[Written]:
    """Results of a sort of which only the first or the last are read."""
    for node in scope.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        result, part = scope.meant(node.value), ""
        if isinstance(result, ast.Subscript) and (place := _constant(result.slice)) in (0, 1):
            result, part = scope.meant(result.value), f"[{place}]"
        elif isinstance(result, ast.Attribute) and (name := result.attr) in ("values", "indices"):
            result, part = scope.meant(result.value), f".{name}"
        call = written_call(result)
        if call is None or call[0] not in TOP.seen or (call[0] == "argsort") != (not part):
            continue
        taken = _taken(node.slice)
        along = _along(call[1][1:2], call[2])
        if taken is None or along is None:
            continue
        axis, count, first = taken
        if any(each.arg not in ("dim", "axis") and not isinstance(each.value, ast.Constant) for each in call[2]):
            continue
        descending = any(each.arg == "descending" and _is_true(each.value) for each in call[2])
        descending = descending or any(map(_is_true, call[1][2:]))
        if along != -1 and axis not in (None, along):
            continue
        largest = "" if descending == first else ", largest=False"
        dim = f", dim={along}" if along != -1 else ""
        better = f"torch.topk({_words(call[1][0])}, {count}{dim}{largest}){part or '[1]'} finds these alone"
        better += "." if first else ", in reverse order."
        number = int(count) if count.isdigit() else 0
        yield Written(TOP, (result.lineno,), better, taken=number, axis=axis, last=along == -1)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _along(given: list[ast.expr], keywords: list[ast.keyword]) -> int | None:
    """Dimension that a sort goes along; None where that is not written as a number."""
    named = [each.value for each in keywords if each.arg in ("dim", "axis")]
    return _constant((given + named)[0]) if given or named else -1


def _taken(part: ast.expr) -> tuple[int | None, str, bool] | None:
    """(axis, None for the last; how many, as written; whether they are the first) of `[:k]`, `[..., :k]`, `[:, -k:]`,
    None for other parts."""
    axes = part.elts if isinstance(part, ast.Tuple) else [part]
    whole = [isinstance(each, ast.Slice) and (each.lower, each.upper, each.step) == (None, None, None) for each in axes]
    last, before = axes[-1], axes[:-1]
    leading = len(before) == 1 and isinstance(before[0], ast.Constant) and before[0].value is ...
    if not leading and not all(whole[:-1]):
        return None
    axis = None if leading else len(before)
    if (number := _constant(last)) in (0, -1):
        return axis, "1", number == 0
    if not isinstance(last, ast.Slice) or last.step is not None or (last.lower is None) == (last.upper is None):
        return None
    if last.upper is not None:
        number = _constant(last.upper)
        known = isinstance(last.upper, ast.Name | ast.Attribute)
        return (axis, ast.unparse(last.upper), True) if known or (number or 0) > 0 else None
    lower = last.lower
    if isinstance(lower, ast.UnaryOp) and isinstance(lower.op, ast.USub):
        return axis, ast.unparse(lower.operand), False
    return None


def _grown(scope: FunctionScope) -> Iterator[Written]:
    """Tensors that a loop joins to themselves, and does not read otherwise."""
    for node in scope.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        call, name = written_call(node.value), node.targets[0].id
        if call is None or call[0] not in GROWN.seen or not call[1] or not isinstance(call[1][0], ast.List | ast.Tuple):
            continue
        own = [each for each in call[1][0].elts if isinstance(each, ast.Name) and each.id == name]
        loop = next((each for each in scope.rounds(node) if isinstance(each, ast.For | ast.While)), None)
        if len(own) != 1 or loop is None:
            continue
        inside = [read for read in scope.reads[name] if loop in scope.rounds(read)]
        if len(inside) == 1:
            yield Written(GROWN, (node.lineno,), GROWN.better.format(A="the list"))


def _blocks(scope: FunctionScope) -> Iterator[Written]:
    """Pieces of a split tensor of which the piece of each sample is read in the row of that sample alone."""
    for node in scope.nodes:
        if not isinstance(node, ast.For | ast.comprehension) or not isinstance(node.target, ast.Tuple):
            continue
        counted = written_call(node.iter)
        call = written_call(scope.meant(counted[1][0])) if counted is not None and counted[0] == "enumerate" else None
        names = [each.id for each in node.target.elts if isinstance(each, ast.Name)]
        if call is None or call[0] != "split" or not isinstance(call[1][0], ast.Name) or len(names) != 2:
            continue
        loop = scope.around[node] if isinstance(node, ast.comprehension) else node
        inside = [read for read in scope.reads[names[1]] if loop in scope.rounds(read)]
        rows = [part_taken(scope.around.get(read), read) for read in inside]
        rows = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in rows]
        if rows and all(isinstance(each, ast.Name) and each.id == names[0] for each in rows):
            whole = call[1][0].id
            lines = {node.iter.lineno, *_making(scope, whole)}
            yield Written(BLOCKS, tuple(sorted(lines)), BLOCKS.better.format(A=whole))


def _jacobians(scope: FunctionScope) -> Iterator[Written]:
    """Jacobians of rows by rows of which each row's block is read alone, and gradients of a row's result of which that
    row is."""
    for node in scope.nodes:
        if isinstance(node, ast.Call) and len(given := _differentiated(node)) == 2:
            outer = scope.around.get(node)
            name = outer.targets[0] if isinstance(outer, ast.Assign) and len(outer.targets) == 1 else None
            reads: list[ast.expr] = [node]
            if isinstance(name, ast.Name):
                stored = [each for each in scope.nodes if isinstance(each, ast.Name) and each.id == name.id]
                reads = [*scope.reads[name.id]] if len(stored) == len(scope.reads[name.id]) + 1 else []
            reads = [each for each in reads if not _reads_its_size(scope.around.get(each))]
            if reads and all(_reads_own_rows(scope, each) for each in reads):
                function, rows = map(_words, given)
                better = f"the Jacobian of {function}({rows}).sum(0) by {rows}, with two dimensions swapped, or "
                better += f"torch.func.vmap(torch.func.jacrev({function}))({rows}) with {function} of one row,"
                lines = tuple(sorted({node.lineno, *(each.lineno for each in reads)}))
                yield Written(JACOBIAN, lines, JACOBIAN.better.format(A=better))
        elif isinstance(node, ast.Subscript) and isinstance(row := _first_index(node), ast.Name):
            result = scope.meant(node.value)
            call = result.value if isinstance(result, ast.Subscript) and _constant(result.slice) == 0 else None
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != "grad" or not call.args:
                continue
            asked = scope.meant(call.args[0])
            loops = [each for outer in scope.rounds(node) for each in (outer, *getattr(outer, "generators", ()))]
            turns = {name for each in loops if hasattr(each, "target") for name in _names(each.target)}
            index = _first_index(asked) if isinstance(asked, ast.Subscript) else None
            if isinstance(asked, ast.Subscript) and isinstance(index, ast.Name) and index.id == row.id in turns:
                better = f"torch.autograd.grad of each number of {_words(asked.value)}.sum(0)"
                lines = tuple(sorted({call.lineno, node.lineno}))
                yield Written(JACOBIAN, lines, JACOBIAN.better.format(A=better))


def _differentiated(call: ast.Call) -> list[ast.expr]:
    """(function, rows) of `jacobian(function, rows)` and `jacrev(function)(rows)`; [] for other calls, for several
    inputs, and for a Jacobian that is vectorized."""
    inner = call.func if isinstance(call.func, ast.Call) else call
    name = ast.unparse(inner.func).rpartition(".")[2]
    given = call.args if inner is call else [*inner.args, *call.args]
    fits = name == "jacobian" if inner is call else name == "jacrev" and not inner.keywords
    fits = fits and not any(each.arg in (None, "vectorize", "strategy") for each in call.keywords)
    return given if fits and not any(isinstance(each, ast.Tuple | ast.Starred) for each in given) else []


def _first_index(node: ast.Subscript) -> ast.expr | None:
    part = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return None if isinstance(part, ast.Slice) else part


def _reads_its_size(outer: ast.AST | None) -> bool:
    call = written_call(outer) if isinstance(outer, ast.Call) else None
    return (call is not None and call[0] == "len") or (isinstance(outer, ast.Attribute) and outer.attr == "shape")


def _reads_own_rows(scope: FunctionScope, whole: ast.expr) -> bool:
    """True where the diagonal of the first and the third dimension of a tensor is taken alone."""
    outer = scope.around.get(whole)
    part = part_taken(outer, whole)
    if isinstance(part, ast.Tuple) and len(part.elts) > 2:
        first, _, third = part.elts[:3]
        return isinstance(first, ast.Name | ast.Call) and ast.dump(first) == ast.dump(third)
    outer = scope.around.get(outer) if isinstance(outer, ast.Attribute) else outer
    call = written_call(outer) if isinstance(outer, ast.Call) else None
    if call is None or whole not in call[1]:
        return False
    name, given, named = call
    if name == "einsum" and len(given) == 2 and isinstance(given[0], ast.Constant):
        terms, _, result = str(given[0].value).replace(" ", "").partition("->")
        return len(terms) > 3 and terms[0] == terms[2] and terms[0] in result
    dims = {each.arg: _constant(each.value) for each in named}
    return name == "diag" and (dims.get("dim1"), dims.get("dim2")) in ((0, 2), (2, 0)) and len(given) == 1


def _making(scope: FunctionScope, *first: str) -> set[int]:
    """Lines of the statements that bind these names, and of statements whose results nothing else reads."""
    made = [each for each in scope.nodes if isinstance(each, ast.Assign)]
    names, taken = {*first}, list[ast.Assign]()
    while more := [each for each in made if each not in taken and _bound(each) <= names]:
        taken += more
        inside = {read for each in taken for read in ast.walk(each)}
        names |= {each for each, reads in scope.reads.items() if reads and inside.issuperset(reads)}
    return {each.lineno for each in taken}


def _bound(statement: ast.Assign) -> set[str]:
    """Names and other places that a statement binds."""
    targets = [part for each in statement.targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return {*map(ast.unparse, targets)}


def making_results(function: FunctionText, results: Iterable[int]) -> set[int]:
    """Lines of a function that compute nothing but some of the results that it returns as a tuple; none if the function
    also returns something else or reads the results itself. results: positions in the tuple."""
    scope = next((each for each in scopes_of(function.text, function.first_line) if each.function != "<module>"), None)
    returned = [each.value for each in scope.nodes if isinstance(each, ast.Return)] if scope is not None else []
    places, names = [*results], set[str]()
    for value in returned:
        if not isinstance(value, ast.Tuple) or len(value.elts) <= max(places, default=0):
            return set()
        parts = [value.elts[place] for place in places]
        names |= {each.id for each in parts if isinstance(each, ast.Name)}
    if scope is None or not names:
        return set()
    inside = {read for value in returned if isinstance(value, ast.Tuple) for place in places
              for read in ast.walk(value.elts[place])}  # fmt: skip
    return _making(scope, *(each for each in names if inside.issuperset(scope.reads[each])))


class _Replaced(ast.NodeTransformer):
    def __init__(self, name: str, by: ast.expr) -> None:
        self._name, self._by = name, by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._by if node.id == self._name else node


def _picked(scope: FunctionScope) -> Iterator[Written]:
    """Lists of calls of which one is read."""
    for node in scope.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        made, index = scope.meant(node.value), node.slice
        if isinstance(index, ast.Slice | ast.Tuple) or not isinstance(made, ast.ListComp) or len(made.generators) != 1:
            continue
        turn = made.generators[0]
        if turn.ifs or not isinstance(turn.target, ast.Name) or not isinstance(made.elt, ast.Call):
            continue
        item = ast.Subscript(turn.iter, index, ast.Load())
        one = _Replaced(turn.target.id, item).visit(ast.parse(ast.unparse(made.elt), mode="eval").body)
        yield Written(PICKED, (made.lineno,), PICKED.better.format(A=ast.unparse(one)))


def _picked_by_row(scope: FunctionScope) -> Iterator[Written]:
    """Stacked results of several functions on the same rows, of which an index takes one result a row."""
    for node in scope.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) < 2:
            continue
        stacked, index = written_call(scope.meant(node.value)), node.slice.elts[:2]
        members = scope.meant(stacked[1][0]) if stacked is not None and stacked[0] == "stack" and stacked[1] else None
        chosen = [each for each in index if (written_call(scope.meant(each)) or ("",))[0] != "arange"]
        if len(chosen) != 1 or isinstance(chosen[0], ast.Slice | ast.Constant):
            continue
        if not isinstance(members, ast.ListComp) or not isinstance(members.elt, ast.Call):
            continue
        targets = {each for turn in members.generators for each in _names(turn.target)}
        given = [each for each in ast.iter_child_nodes(members.elt) if each is not members.elt.func]
        if targets & _names(members.elt.func) and not any(targets & _names(each) for each in given):
            yield Written(ROWS, (members.lineno, node.lineno), ROWS.better.format(A=_words(chosen[0])))


def _built(scope: FunctionScope, scopes: Iterable[FunctionScope]) -> Iterator[Written]:
    """Kronecker products of which the text shows no other use than as a factor of one product. scopes: functions that
    may call this one."""
    for node in scope.nodes:
        call = written_call(node)
        if call is None or call[0] != "kron" or len(call[1]) != 2:
            continue
        products = {*_products(scope, node, scopes)}  # a function may be in several texts
        if len(products) == 1 and (line := products.pop()):
            better = KRONECKER.better.format(A=_words(call[1][0]), B=_words(call[1][1]))
            yield Written(KRONECKER, (getattr(node, "lineno", 0),), better, multiplied=line)


def _products(scope: FunctionScope, node: ast.AST, scopes: Iterable[FunctionScope]) -> list[int]:
    """Lines of the matmuls that use a value: as it is, transposed, scaled, added to another, by its name, or as the
    result of its function; 0 for any other use."""
    while (outer := scope.around.get(node)) is not None:
        call = written_call(outer)
        if call is not None and call[0] in FACTORS:
            return [getattr(outer, "lineno", 0)]
        if isinstance(outer, ast.BinOp | ast.Attribute) or (call is not None and call[0] in KEEPING):
            node = outer
        elif isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Name):
            reads = scope.reads[outer.targets[0].id]
            behind = len(reads) == 1 and reads[0].lineno > outer.lineno  # else it may lead back here
            return _products(scope, reads[0], scopes) if behind else [0]
        elif isinstance(outer, ast.Return):
            calls = ((each, at) for each in scopes for at in each.nodes if _calls(at, scope.function))
            return [line for each, at in calls for line in _products(each, at, ())]
        else:
            break
    return [0]


def _calls(node: ast.AST, function: str) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    return bool(name) and name == function


def _one_by_one(scope: FunctionScope) -> Iterator[Written]:
    for node in scope.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILT_IN:
            given = node.args
            if len(given) == 1 and not node.keywords and not isinstance(given[0], ast.List | ast.ListComp | ast.Tuple):
                whole = given[0]
                if isinstance(whole, ast.GeneratorExp):
                    better = f"Compute it of all of {_words(whole.generators[0].iter)} at once, in one operator."
                else:
                    better = f"{BUILT_IN[node.func.id].format(A=_words(whole))} is one operator."
                yield Written(ONE_BY_ONE, (node.lineno,), better)


def passes_of(function: FunctionText) -> tuple[Passes, ...]:
    """Calls of one function, in one list of statements, that do not depend on each other's results. Of nested calls,
    the inner ones."""
    return tuple(
        each
        for scope in scopes_of(function.text, function.first_line)
        for block in _statements(scope)
        for each in _in_block(block)
    )


def _statements(scope: FunctionScope) -> Iterator[list[ast.stmt]]:
    tops = {scope.around[node] for node in scope.nodes if isinstance(node, ast.stmt)}
    for top in sorted(tops, key=lambda node: getattr(node, "lineno", 0)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(top, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _simple(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run once with a statement, inner ones first."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*ROUNDS, *SCOPES, ast.IfExp, ast.stmt)):
            yield from _simple(child)
            yield child


def _in_block(block: list[ast.stmt]) -> Iterator[Passes]:
    calls: dict[str, list[tuple[ast.Call, frozenset[str]]]] = defaultdict(list)
    results: dict[str, frozenset[str]] = {}
    """Functions whose results a name holds."""
    for statement in block:
        whole = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
        if any(isinstance(each.func, ast.Attribute) and each.func.attr in UPDATING for each in whole):
            yield from _apart(calls)
            calls.clear()
        simple = not isinstance(statement, (ast.For, ast.While, ast.If, ast.With, ast.Try, *SCOPES))
        for node in _simple(statement) if simple else ():
            if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name | ast.Attribute):
                calls[ast.unparse(node.func)].append((node, _held(node.args, results)))
        held = _held([statement], results)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                results[ast.unparse(node)] = held
        if simple:
            yield from _comprehended(statement)
    yield from _apart(calls)


def _held(nodes: Iterable[ast.AST], results: dict[str, frozenset[str]]) -> frozenset[str]:
    """Functions whose results these expressions read."""
    held: set[str] = set()
    for node in nodes:
        for each in ast.walk(node):
            if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load):
                held |= results.get(ast.unparse(each), frozenset())
            if isinstance(each, ast.Call):
                held.add(ast.unparse(each.func))
    return frozenset(held)


def _apart(calls: dict[str, list[tuple[ast.Call, frozenset[str]]]]) -> Iterator[Passes]:
    several = {
        name: made
        for name, made in calls.items()
        if len({ast.dump(call) for call, _ in made}) == len(made) >= 2 and all(name not in held for _, held in made)
    }
    for name, made in several.items():
        if all(held.isdisjoint(several) for _, held in made):
            yield Passes(name, tuple(call.lineno for call, _ in made), len(made))


def _comprehended(statement: ast.stmt) -> Iterator[Passes]:
    for node in ast.walk(statement):
        if not isinstance(node, ast.ListComp | ast.GeneratorExp) or not isinstance(node.elt, ast.Call):
            continue
        function, turn = ast.unparse(node.elt.func), node.generators[0].target
        names = {each.id for each in ast.walk(node.elt.func) if isinstance(each, ast.Name)}
        if isinstance(turn, ast.Name) and turn.id not in names and node.elt.args and not node.generators[0].ifs:
            yield Passes(function, (node.lineno,), 0)


@dataclass(frozen=True, slots=True)
class WrittenLoop:
    """Loop over parts of a tensor. line: line of the loop. carried: variable whose value each round takes from the
    round before; "" if no round reads what another has written."""

    line: int
    carried: str


def runs_again(function: FunctionText, line: int) -> bool:
    """True if a line is in a loop or a comprehension of the function and runs several times."""
    scopes = scopes_of(function.text, function.first_line)
    return any(getattr(node, "lineno", 0) == line and scope.rounds(node) for scope in scopes for node in scope.nodes)


def loop_around(function: FunctionText, line: int) -> WrittenLoop | None:
    """The innermost loop around a line that indexes a tensor. None if there is none, or if the text shows that its
    rounds differ in what they run or in their sizes."""
    inside = [
        node
        for scope in scopes_of(function.text, function.first_line)
        for node in scope.nodes
        if isinstance(node, ast.For) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    loop = max(inside, key=lambda node: node.lineno, default=None)
    if loop is None or not isinstance(loop.target, ast.Name):
        return None
    parts, nodes = [], [node for statement in loop.body for node in ast.walk(statement)]
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.Break | ast.Continue | ast.Return | ast.Try | ast.Yield):
            return None
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        called = node.func if isinstance(node, ast.Call) and not method else None
        if method in UPDATING or (called is not None and loop.target.id in _names(called)):  # another function each
            return None
        if isinstance(node, ast.Slice) and loop.target.id in _names(node):
            return None
        if isinstance(node, ast.Subscript) and loop.target.id in _names(node.slice):
            parts.append(node)
    return WrittenLoop(loop.lineno, _carried(loop.body)) if parts else None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _carried(body: list[ast.stmt]) -> str:
    """Name that a statement reads before the round has bound it, and that the round binds; "" for none. A name that
    only adds up, or that parts are written into, is none."""
    written = {
        ast.unparse(node)
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    bound: set[str] = set()
    for statement in body:
        own = [*statement.targets] if isinstance(statement, ast.Assign) else []
        reads = [
            ast.unparse(node)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        ]
        if len(own) == 1 and _adds_up(ast.unparse(own[0]), statement):
            reads.remove(ast.unparse(own[0]))
        carried = [name for name in reads if name in written and name not in bound]
        if carried:
            return carried[0]
        bound |= {ast.unparse(each) for target in own for each in ast.walk(target) if isinstance(each, ast.Name)}
    return ""


def _adds_up(name: str, statement: ast.stmt) -> bool:
    """True for `x = x + …` and `x = torch.cat([x, …])`."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return name in (ast.unparse(value.left), ast.unparse(value.right))
    call = written_call(value) if value is not None else None
    given = call[1][:1] if call is not None and call[0] in GROWN.seen else []
    return any(isinstance(each, ast.List | ast.Tuple) and name in map(ast.unparse, each.elts) for each in given)
