"""Lines of ours inside a function of torch's, which stays the same object.

torch's timed functions cannot be wrapped: user code holds references to them, TorchScript compiles their source by
name, pickle looks them up, TorchDynamo compares them. So a function keeps its object, name, signature and source. Its
code object is replaced by one compiled from the same source (torch 2.4 to 2.13) with a few lines of ours at its start.
These have no line numbers of their own, so tracebacks are the same, and no frame of ours is around the call.

While TorchDynamo traces such a function, it folds `torch.compiler.is_dynamo_compiling()` and never reaches our lines.
It guards on the code of a traced function, so the lines are installed once and stay.
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
"""Placeholders for the function's own statements. With RETURNED, their results go through `"returned"(…)`, as the last
argument after those in the text: `RETURNED(self)`."""


THROUGH = """
if not torch.compiler.is_dynamo_compiling():
    RETURNED({})
else:
    BODY
"""
"""Lines for a function whose result goes through `returned`. The placeholder takes the arguments before it."""
K = TypeVar("K")
V = TypeVar("V")


class LaidTable(dict[K, V]):
    """Dictionary that can be a constant of code: hashable, because code objects are keys of many tables."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Reported:
    """Context manager that our lines put around a call. It keeps the observers of the start, with their tokens."""

    __slots__ = ("_begun",)
    _begun: Any

    def _add(self, observer: Any, begun: Any) -> None:
        if begun is not None:
            self._begun = observer, begun, self._begun

    def __exit__(self, *_: Any) -> None:
        """Calls the observers' `ends`, last one first."""
        begun = self._begun
        while begun is not None:
            observer, token, begun = begun
            observer.ends(token)


class Inlay:
    """Lines of ours inside one function of torch's. text: the statements; quoted names in it represent `constants`,
    which the code then holds.

    Raises OSError without torch's source, and other errors if the function has an unexpected form."""

    def __init__(self, function: Any, text: str, **constants: Any) -> None:
        assert isinstance(function, FunctionType)
        self._function, self._text, self._constants = function, text, constants
        self._original = function.__code__
        self._ours: CodeType | None = None

    def install(self) -> None:
        """Installs the lines, unless they are installed or somebody else has changed the function's code."""
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
        """Returns the compiled code of torch's function, with the constants in place of their names."""
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
"""Entry of `warnings.filters` that ignores SyntaxWarning."""
FUTURE = 0x1FE0000
"""Flags of `from __future__ import …` in a code object, which `compile` accepts."""


def _shift(tree: ast.AST, lines: int, columns: int) -> None:
    """Moves line and column numbers from the function's text to its file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.ExceptHandler | ast.alias):
            node.lineno, node.end_lineno = node.lineno + lines, (node.end_lineno or node.lineno) + lines
            node.col_offset, node.end_col_offset = node.col_offset + columns, (node.end_col_offset or 0) + columns
            node._torchs = True  # type: ignore[union-attr]


def _placed(ours: list[ast.stmt], torchs: list[ast.stmt]) -> list[ast.stmt]:
    """Returns our statements with torch's own in place of each BODY and RETURNED."""
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
    """Transformer that passes the returned values of a function through `returned`."""

    def __init__(self, arguments: list[ast.expr]) -> None:
        self._arguments = arguments

    def visit_Return(self, node: ast.Return) -> ast.Return:
        assert node.value is not None
        call = ast.Call(ast.Constant("returned"), [*self._arguments, node.value], [])
        return ast.copy_location(ast.Return(call), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # what it returns is another matter
