"""Names and calls in the text of a function, as far as its syntax tree shows what they stand for."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from steptime.advice.syntax import tree_of

SAME = {
    "inv": "inverse", "mm": "matmul", "bmm": "matmul", "mv": "matmul", "concat": "cat", "concatenate": "cat",
    "diagonal": "diag",
}  # fmt: skip
"""Functions of torch's that do what another does, as far as it is looked for here."""
MODULES = frozenset({"torch", "linalg", "F", "functional", "nn", "D", "dist", "distributions", "td"})
"""First names of what is no tensor: the arguments of their functions are."""
ROUNDS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.Lambda)
"""What runs a part of a function again, or not at all."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class FunctionScope:
    """Syntax of one function, or of a module's own statements. around: parent of each node; reads: reads of each
    name."""

    def __init__(self, top: ast.AST) -> None:
        self.function: str = getattr(top, "name", "<module>")
        decorators: list[ast.expr] = getattr(top, "decorator_list", [])
        self.first_line: int = min([getattr(top, "lineno", 1), *(each.lineno for each in decorators)])
        self.last_line: int = getattr(top, "end_lineno", None) or 0
        self.around: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._collect(top)
        self.reads: dict[str, list[ast.Name]] = defaultdict(list)
        self._stores: dict[str, int] = defaultdict(int)
        arguments = getattr(top, "args", None)
        for each in ast.walk(arguments) if isinstance(arguments, ast.arguments) else ():
            if isinstance(each, ast.arg):
                self._stores[each.arg] += 1
        for node in self.nodes:
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self.reads[node.id].append(node)
                else:
                    self._stores[node.id] += 1
        self._bound = dict(self._bindings())

    def _collect(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, SCOPES):
                self.around[child] = node
                self.nodes.append(child)
                self._collect(child)

    def _bindings(self) -> Iterator[tuple[str, tuple[ast.Assign, ast.expr]]]:
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, (node, node.value)
            elif isinstance(target, ast.Tuple):
                for place, each in enumerate(target.elts):
                    if isinstance(each, ast.Name):
                        item = ast.Subscript(node.value, ast.Constant(place), ast.Load())
                        yield each.id, (node, ast.copy_location(item, node.value))

    def rounds(self, node: ast.AST) -> list[ast.AST]:
        """Loops and comprehensions around a node, which make it run repeatedly, the innermost first."""
        found: list[ast.AST] = []
        while (outer := self.around.get(node)) is not None:
            first = isinstance(outer, ast.For | ast.AsyncFor) and node is outer.iter  # it runs once
            if isinstance(outer, ast.comprehension) and node is outer.iter:  # so does that of the outermost part
                whole = self.around[outer]
                outer = whole if getattr(whole, "generators", [None])[0] is outer else outer
                first = outer is whole
            found += [outer] if isinstance(outer, ROUNDS) and not first else []
            node = outer
        return found

    def meant(self, node: ast.expr) -> ast.expr:
        """Expression that a name is bound to; the node itself where that is not certain."""
        if not isinstance(node, ast.Name) or len(self.reads[node.id]) != 1 or self._stores[node.id] != 1:
            return node
        statement, value = self._bound.get(node.id, (None, node))
        if statement is None or statement.lineno >= node.lineno or self.rounds(statement) != self.rounds(node):
            return node
        others = {each.id for each in ast.walk(statement.targets[0]) if isinstance(each, ast.Name)} - {node.id}
        if any(self.reads[each] for each in others) and not self._are_taken(others | {node.id}):
            return node
        return value

    def _are_taken(self, names: Iterable[str]) -> bool:
        """True if a part is taken of each of these at all its reads: of both results of a sort."""
        taken = [part_taken(self.around.get(read), read) for name in names for read in self.reads[name]]
        return None not in taken and len({ast.dump(each) for each in taken if each is not None}) == 1


def part_taken(node: ast.AST | None, whole: ast.AST) -> ast.expr | None:
    return node.slice if isinstance(node, ast.Subscript) and node.value is whole else None


def written_call(node: ast.AST) -> tuple[str, list[ast.expr], list[ast.keyword]] | None:
    """(name, arguments, keywords) of a call, a method's tensor being the first argument; @ counts as a matmul."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "matmul", [node.left, node.right], []
    if not isinstance(node, ast.Call):
        return None
    name, given = "", list(node.args)
    if isinstance(node.func, ast.Name):
        name = node.func.id
    elif isinstance(node.func, ast.Attribute):
        name, root = node.func.attr, node.func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if not (isinstance(root, ast.Name) and root.id in MODULES):
            given.insert(0, node.func.value)
    return SAME.get(name, name), given, node.keywords


@lru_cache(maxsize=256)
def scopes_of(text: str, first_line: int) -> tuple[FunctionScope, ...]:
    """Scopes of a source text: its functions and its own statements; () for a text that is no Python."""
    indented = text[:1].isspace()
    tree = tree_of(f"if True:\n{text}" if indented else text)
    if tree is None:
        return ()
    ast.increment_lineno(tree, first_line - 1 - indented)
    return tuple(FunctionScope(each) for each in ast.walk(tree) if isinstance(each, (ast.Module, *SCOPES[:2])))
