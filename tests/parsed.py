"""Files of the project, parsed once for all tests that look at them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Syntax tree of a file. It stays: the garbage collector would go through a million nodes again and again."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, which is gone through once for all checks."""
    return tuple(ast.walk(tree))
