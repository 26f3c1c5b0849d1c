"""Edit that keeps a sum of device values on the device: `total += loss.item()` is read only where it is used.

One law, as of all edits: nothing is written that is not certainly equivalent. The sum is in float64, as Python's own
is, so that the job prints the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import libcst
from libcst import matchers
from libcst.metadata import ExpressionContext

from steptime.advice.fix import DeferEdit
from steptime.trials.source import Scope, SourceFile, StatementPlace, nodes_in, parameters

Loop = libcst.For | libcst.While
New = dict[libcst.CSTNode, Callable[[Any], Any]]

ADDED = matchers.AugAssign(target=matchers.Name(), operator=matchers.AddAssign())
ITEM = matchers.Call(func=matchers.Attribute(attr=matchers.Name("item")), args=[])
EQUAL = matchers.Comparison(comparisons=[matchers.ComparisonTarget(operator=matchers.Equal())])
COUNTED = matchers.Call(
    func=matchers.Attribute(
        value=EQUAL | matchers.Call(func=matchers.Attribute(attr=matchers.Name("eq"))), attr=matchers.Name("sum")
    ),
    args=[],
)
"""Pattern of the number of equal elements of two tensors: an integer."""
NOW_AND_THEN = matchers.BinaryOperation(operator=matchers.Modulo())


def deferred(source: SourceFile, edit: DeferEdit) -> New | None:
    """Replacements by node that keep a sum on the device; None if it is read in every step, or is not simple."""
    place = source.statement_at(edit.site.line)
    added = _added(place)
    if place is None or added is None:
        return None
    sum_, item = added
    name, scope = sum_.target, source.scope_of(place.statement)
    loop = next((node for node in source.around(place.statement) if isinstance(node, Loop)), None)
    assert isinstance(name, libcst.Name)
    if scope is None or loop is None or not isinstance(item.func, libcst.Attribute):
        return None
    found, value = _reads(source, name, scope, loop), item.func.value
    kind = _kind(source, sum_, value, found[1], loop) if found is not None else None
    if found is None or kind is None:
        return None
    reads, _ = found

    def read(node: Any) -> libcst.Call:
        return libcst.Call(libcst.Name(kind), [libcst.Arg(node)])

    ending = ("detach",) if kind == "int" else ("detach", "double")
    new: New = {item: lambda _: _called(value, *ending)}
    return new | dict.fromkeys(reads, read)


def _added(place: StatementPlace | None) -> tuple[libcst.AugAssign, libcst.Call] | None:
    """Pair (sum, item): the only `+=` in a statement, and the only `….item()` in it, used in arithmetic only; else
    None."""
    if place is None or not isinstance(place.statement, libcst.SimpleStatementLine) or len(place.statement.body) != 1:
        return None
    (sum_,) = place.statement.body
    if not isinstance(sum_, libcst.AugAssign) or not matchers.matches(sum_, ADDED):
        return None
    items = [node for node in nodes_in(sum_.value) if matchers.matches(node, ITEM)]
    if len(items) != 1 or not isinstance(items[0], libcst.Call) or not _in_arithmetic(sum_.value, items[0]):
        return None
    return sum_, items[0]


def _in_arithmetic(value: libcst.BaseExpression, item: libcst.Call) -> bool:
    if value is item:
        return True
    if not isinstance(value, libcst.BinaryOperation) or not isinstance(
        value.operator, libcst.Multiply | libcst.Divide | libcst.Add | libcst.Subtract
    ):
        return False
    return _in_arithmetic(value.left, item) or _in_arithmetic(value.right, item)


def _called(value: libcst.BaseExpression, *methods: str) -> libcst.BaseExpression:
    for method in methods:
        value = libcst.Call(libcst.Attribute(value, libcst.Name(method)))
    return value


def _kind(
    source: SourceFile, sum_: libcst.AugAssign, value: libcst.BaseExpression, zeros: list[libcst.CSTNode], loop: Loop
) -> str | None:
    """Type of Python's sum, "int" or "float"; None if unknown. zeros: assignments of zero. From 0.0 on it is a float,
    whatever is added. From 0 on the addend decides: a count of equal elements is an integer, and a loss that backward
    is called on is a float."""
    whole = [isinstance(getattr(each, "value", None), libcst.Integer) for each in zeros]
    if zeros and not any(whole):
        return "float"
    if not all(whole):
        return None
    if isinstance(sum_.value, libcst.Call) and matchers.matches(value, COUNTED):
        return "int"
    owners = [each.func.value for each in source.calls_of("backward") if isinstance(each.func, libcst.Attribute)]
    anew = any(loop in source.around(each) for each in zeros)  # and it may be read before anything is added
    return "float" if not anew and any(value.deep_equals(each) for each in owners) else None


def _reads(
    source: SourceFile, name: libcst.Name, scope: Scope, loop: Loop
) -> tuple[list[libcst.CSTNode], list[libcst.CSTNode]] | None:
    """Pair (reads of the sum, assignments of zero to it); None if it is set to anything else, is visible to another
    function, or is read in every step."""
    found: list[libcst.CSTNode] = []
    zeros: list[libcst.CSTNode] = []
    for node, context in source.variables(name.value):
        if node is name:
            continue
        around = source.around(node)
        if source.scope_of(node) is not scope:
            if not _is_anothers(source, node, name.value, scope):
                return None
        elif context is ExpressionContext.LOAD:
            if loop in around and not _now_and_then(around[: around.index(loop)]):
                return None
            if any(isinstance(each, libcst.FormattedStringExpression) and each.equal for each in around):
                return None
            found.append(node)
        else:
            zero = _zeroed(around) if context is ExpressionContext.STORE else None
            if zero is None:
                return None
            zeros.append(zero)
    return found, zeros


def _is_anothers(source: SourceFile, node: libcst.CSTNode, name: str, scope: Scope) -> bool:
    """True if a name is a variable of another function that is not nested in this one."""
    other = source.scope_of(node)
    if not isinstance(other, libcst.FunctionDef) or (scope in source.around(other) and scope is not source.module):
        return False
    shared = any(isinstance(each, libcst.Global | libcst.Nonlocal) for each in source.nodes)
    return not shared and (name in source.names_bound(other) or name in parameters(other))


def _now_and_then(around: list[libcst.CSTNode]) -> bool:
    """True if the code runs only every few steps: an `if` with a modulo in its test."""
    for inner, outer in pairwise(around):
        if isinstance(outer, libcst.If) and inner is outer.body:
            return any(matchers.matches(node, NOW_AND_THEN) for node in nodes_in(outer.test))
    return False


def _zeroed(around: list[libcst.CSTNode]) -> libcst.CSTNode | None:
    """Plain assignment of zero whose target this name is; None for any other."""
    target, *more = around
    if isinstance(target, libcst.AssignTarget) and isinstance(more[0], libcst.Assign):
        plain = all(isinstance(each.target, libcst.Name) for each in more[0].targets)
        return more[0] if plain and _is_zero(more[0].value) else None
    return target if isinstance(target, libcst.AnnAssign) and _is_zero(target.value) else None


def _is_zero(value: libcst.BaseExpression | None) -> bool:
    return isinstance(value, libcst.Integer | libcst.Float) and not value.evaluated_value
