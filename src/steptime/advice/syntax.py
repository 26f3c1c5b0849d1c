"""Syntax of the job's own text, of which a recording holds parts, and which anybody may have written."""

from __future__ import annotations

import ast
import warnings

MOST_CHARACTERS, DEEPEST = 200_000, 100
"""Of a text that is read: those of real functions are far below, and Python's stack holds far more."""


def tree_of(text: str) -> ast.Module | None:
    """Syntax tree of a text; None if it is no Python, or too long or too deeply nested to be walked."""
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():  # about the user's text
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    return None
