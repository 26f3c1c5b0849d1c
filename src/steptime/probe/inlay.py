"""Lines of ours inside of a function of torch's: the function stays the object that it is.

The timed functions of torch cannot be wrapped: user code holds references to them, TorchScript compiles them by name
from their source, pickle looks them up, TorchDynamo compares them. So a function keeps its object, name, signature and
source, and gets a code object that is compiled from that very source (torch 2.4 to 2.13) with a few lines of ours at
its start. They are in no line of their own, so tracebacks are the same, and no frame of ours lies around the call.

TorchDynamo, where it traces such a function, folds `torch.compiler.is_dynamo_compiling()` and never meets the rest. It
guards on the code of a function that it has traced: lines are laid in once, and stay.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
import warnings
from types import CodeType, FunctionType
from typing import Any, TypeVar

BODY, RETURNED = "BODY", "RETURNED"
"""Names that stand for the function's own statements. In the second what they return goes through `"returned"(…)`, as
the last argument behind those that the text gives it: `RETURNED(self)`."""


THROUGH = """
if not torch.compiler.is_dynamo_compiling():
    RETURNED({})
else:
    BODY
"""
"""The text for a function whose result `returned` gives, behind arguments."""
K = TypeVar("K")
V = TypeVar("V")


class LaidTable(dict[K, V]):
    """A dictionary that lines of ours can name: a constant of code has a hash, as code is a key in many tables."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Reported:
    """Who has been told that something starts, with what each is to get when it ends: as a context manager, which lines
    of ours put around it."""

    __slots__ = ("_begun",)
    _begun: Any

    def _add(self, observer: Any, begun: Any) -> None:
        if begun is not None:
            self._begun = observer, begun, self._begun

    def __exit__(self, *_: Any) -> None:
        """The last who was told of the start is told of the end first."""
        begun = self._begun
        while begun is not None:
            observer, token, begun = begun
            observer.ends(token)


class Inlay:
    """Lines for one function. text: the statements; names in quotes stand for `constants`, which the code then holds.

    Raises OSError without torch's source, and whatever a function of another form makes fail.
    """

    def __init__(self, function: Any, text: str, **constants: Any) -> None:
        assert isinstance(function, FunctionType)
        self._function, self._text, self._constants = function, text, constants
        self._original = function.__code__
        self._ours: CodeType | None = None

    def install(self) -> None:
        """Lays the lines in, unless they are, or somebody else has changed the function's code."""
        if self._ours is None:
            self._ours = self._made()
        if self._function.__code__ is self._original:
            self._function.__code__ = self._ours

    def remove(self) -> None:
        if self._function.__code__ is self._ours:
            self._function.__code__ = self._original

    def _made(self) -> CodeType:
        lines, first = inspect.getsourcelines(self._original)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list.clear()
        _shift(tree, first - 1, len(lines[0]) - len(lines[0].lstrip()))
        ours = _placed(ast.parse(self._text).body, function.body)
        last = next((node for node in reversed(list(ast.walk(function))) if isinstance(node, ast.Return)), function)
        for node in (each for statement in ours for each in ast.walk(statement)):
            if isinstance(node, ast.expr | ast.stmt) and not hasattr(node, "_torchs"):
                ast.copy_location(node, last)
        function.body = ours
        return self._compiled(tree)

    def _compiled(self, tree: ast.Module) -> CodeType:
        """The code that torch's own compiles to, with the constants in their places."""
        original = self._original
        # A string is called, in what the compiler gets. `catch_warnings` would let the job's own be given once more.
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        filters.insert(0, SILENT)
        try:
            code = compile(tree, original.co_filename, "exec", flags=original.co_flags & FUTURE, dont_inherit=True)
        finally:
            filters.remove(SILENT)
        code = next(each for each in code.co_consts if isinstance(each, CodeType))
        known = self._constants
        constants = tuple(known.get(each, each) if isinstance(each, str) else each for each in code.co_consts)
        names: Any = {"co_qualname": original.co_qualname} if hasattr(original, "co_qualname") else {}
        return code.replace(co_consts=constants, co_firstlineno=original.co_firstlineno, **names)


SILENT = ("ignore", None, SyntaxWarning, None, 0)
"""A filter of Python's warnings."""
FUTURE = 0x1FE0000
"""Flags of `from __future__ import …` in a code object, which the compiler takes, too."""


def _shift(tree: ast.AST, lines: int, columns: int) -> None:
    """From places in the function's text to those in its file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.ExceptHandler | ast.alias):
            node.lineno, node.end_lineno = node.lineno + lines, (node.end_lineno or node.lineno) + lines
            node.col_offset, node.end_col_offset = node.col_offset + columns, (node.end_col_offset or 0) + columns
            node._torchs = True  # type: ignore[union-attr]


def _placed(ours: list[ast.stmt], torchs: list[ast.stmt]) -> list[ast.stmt]:
    """Our statements, with torch's own for each BODY and RETURNED."""
    found: list[ast.stmt] = []
    for statement in ours:
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Name) and value.id == BODY:
            found += torchs
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == RETURNED:
            found += [_Through(value.args).visit(copy.deepcopy(each)) for each in torchs]
        else:
            for field in ("body", "orelse", "finalbody"):
                if inner := getattr(statement, field, None):
                    setattr(statement, field, _placed(inner, torchs))
            found.append(statement)
    return found


class _Through(ast.NodeTransformer):
    """Lets what a function returns go through a function of ours."""

    def __init__(self, arguments: list[ast.expr]) -> None:
        self._arguments = arguments

    def visit_Return(self, node: ast.Return) -> ast.Return:
        assert node.value is not None
        call = ast.Call(ast.Constant("returned"), [*self._arguments, node.value], [])
        return ast.copy_location(ast.Return(call), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # what it returns is another matter
