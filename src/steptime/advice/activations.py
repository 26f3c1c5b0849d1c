"""Activations that the user's code writes out as formulas, and the torch functions that compute the same in one pass.

A formula is recognized by its values, not by its text: there are many ways to write each."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steptime.advice.syntax import tree_of

POINTS = tuple(number / 4 for number in range(-24, 25))
CLOSE = 1e-6
"""Tolerance, relative for values above one: as close as formulas with constants of seven digits are to each other."""
LONGEST = 400
"""Most characters of a formula; longer ones are not examined."""

Function = Callable[[float], float]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


READY: Mapping[str, Function] = {
    'gelu({}, approximate="tanh")': lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu({})": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "silu({})": lambda x: x * _sigmoid(x),
}
"""Functions of torch.nn.functional by call, from its documentation. Without mish: on a CPU its single kernel takes
longer than the formula's (torch 2.13)."""
FUNCTIONS: Mapping[str, Function] = {
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "square": lambda x: x * x,
    "sigmoid": _sigmoid,
}
"""Functions of math, numpy and torch, and methods of a tensor."""
CONSTANTS = {"pi": math.pi}
OF_NUMBERS = frozenset({"math", "np", "numpy"})
"""Modules whose functions accept no tensor."""
OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
    ast.Pow: lambda one, other: float(one**other),
}


@dataclass(frozen=True, slots=True)
class Activation:
    """Known activation function in a formula. variable: name of the formula's variable. call: torch function that
    computes the same, without "torch.nn.functional."."""

    variable: str
    call: str


def activation_of(formula: str) -> Activation | None:
    """Activation function that an expression of one variable computes; None for any other expression."""
    if len(formula) > LONGEST:
        return None
    tree = tree_of(formula.strip())
    (only,) = tree.body if tree is not None and len(tree.body) == 1 else (None,)
    return _known(only.value) if isinstance(only, ast.Expr) else None


def activation_in(line: str) -> Activation | None:
    """First activation that a line of Python computes, as a statement or in an expression; None without one."""
    if len(line) > LONGEST:
        return None
    tree = tree_of(line.strip())
    if tree is None:
        return None
    found = (_known(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.Call))
    return next((each for each in found if each is not None), None)


def _known(expression: ast.expr) -> Activation | None:
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} - _modules(expression)
    if len(names) != 1:
        return None
    (variable,) = names
    try:
        values = [_value(expression, variable, x) for x in POINTS]
    except (ArithmeticError, ValueError, TypeError, _UnknownError):
        return None
    for call, function in READY.items():
        if all(abs(value - function(x)) <= CLOSE * max(1.0, abs(x)) for x, value in zip(POINTS, values, strict=True)):
            return Activation(variable, call.format(variable))
    return None


class _UnknownError(Exception):
    """Raised for an expression with a part whose value is unknown."""


def _modules(expression: ast.expr) -> set[str]:
    """Names of modules in an expression: those with a constant or a called function as an attribute, and names of
    called functions."""
    found = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and node.attr in CONSTANTS:
            found.add(_root(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not _is_method(node):
            found.add(_root(node.func))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_method(call: ast.Call) -> bool:
    """True for `x.tanh()` and `x.pow(3)`, False for `torch.tanh(x)` and `torch.pow(x, 3)`."""
    assert isinstance(call.func, ast.Attribute)
    return len(call.args) == (1 if call.func.attr == "pow" else 0)


def _value(node: ast.expr, variable: str, x: float) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == variable:
        return x
    if isinstance(node, ast.Attribute) and node.attr in CONSTANTS:
        return CONSTANTS[node.attr]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, variable, x)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, variable, x), _value(node.right, variable, x))
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(node, variable, x)
    raise _UnknownError


def _called(node: ast.Call, variable: str, x: float) -> float:
    given = list(node.args)
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if _is_method(node):
            given.insert(0, node.func.value)
        elif _root(node.func) in OF_NUMBERS and any(
            isinstance(each, ast.Name) and each.id == variable for value in given for each in ast.walk(value)
        ):
            raise _UnknownError
    else:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
    values = [_value(each, variable, x) for each in given]
    if name == "pow" and len(values) == 2:
        return OPERATORS[ast.Pow](*values)
    if name in FUNCTIONS and len(values) == 1:
        return FUNCTIONS[name](values[0])
    raise _UnknownError
