"""Read-only view of a source file for edits: statements by line, loops, and the meaning of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

Block = libcst.Module | libcst.IndentedBlock
Statement = libcst.SimpleStatementLine | libcst.BaseCompoundStatement
Scope = libcst.Module | libcst.FunctionDef


@dataclass(frozen=True, slots=True)
class StatementPlace:
    """Statement with its block and its index in the block."""

    block: Block
    index: int
    statement: Statement


class SourceFile:
    """Parsed source file. `aliases`: full names by local name, from the imports at its top."""

    def __init__(self, module: libcst.Module) -> None:
        self._wrapper = wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = module
        self.nodes = nodes_in(module)
        self._parents: Mapping[libcst.CSTNode, libcst.CSTNode] = wrapper.resolve(metadata.ParentNodeProvider)
        self._positions: Mapping[libcst.CSTNode, metadata.CodeRange] = wrapper.resolve(metadata.PositionProvider)
        self._lines = module.code.split("\n")
        self.aliases = dict(_aliases(module))

    def is_line(self, line: int, text: str) -> bool:
        """True if line number `line` of the file still has that text (stripped); "" matches any text."""
        return 0 < line <= len(self._lines) and text in ("", self._lines[line - 1].strip())

    def statement_at(self, line: int) -> StatementPlace | None:
        """Simple statement of a block that covers a line; None for the head of a compound statement, and for code after
        a colon on the same line."""
        for node in self.nodes:
            if isinstance(node, libcst.SimpleStatementLine) and self._is_on(node, line):
                return self.place_of(node)
        return None

    def place_of(self, node: libcst.CSTNode) -> StatementPlace | None:
        """Statement, directly in a block, that contains a node or is the node."""
        while node is not self.module:
            parent = self._parents[node]
            if isinstance(parent, libcst.Module | libcst.IndentedBlock):
                for index, statement in enumerate(statements_of(parent)):
                    if statement is node:
                        return StatementPlace(parent, index, statement)
            node = parent
        return None

    def scope_of(self, node: libcst.CSTNode) -> Scope | None:
        """Function or module whose scope a node is in; None inside of a class's body or a lambda."""
        for each in self.around(node):
            if isinstance(each, libcst.FunctionDef):
                return each
            if isinstance(each, libcst.ClassDef | libcst.Lambda):
                return None
        return self.module

    def around(self, node: libcst.CSTNode) -> list[libcst.CSTNode]:
        """Ancestors of a node, innermost first."""
        found = list[libcst.CSTNode]()
        while node is not self.module:
            node = self._parents[node]
            found.append(node)
        return found

    def variables(self, name: str) -> list[tuple[libcst.CSTNode, metadata.ExpressionContext]]:
        """(node, context) of reads and writes of a variable anywhere in the file, without attributes and keyword
        names."""
        contexts = self._wrapper.resolve(metadata.ExpressionContextProvider)
        names = [node for node in self.nodes if isinstance(node, libcst.Name) and node.value == name]
        known = [(node, contexts.get(node)) for node in names if not self._is_keyword(node)]
        return [(node, context) for node, context in known if context is not None]

    def _is_keyword(self, node: libcst.CSTNode) -> bool:
        parent = self._parents[node]
        return isinstance(parent, libcst.Arg) and parent.keyword is node

    def outermost_loop(self, node: libcst.CSTNode) -> StatementPlace | None:
        """Outermost loop around a node in its function."""
        loop: libcst.CSTNode | None = None
        while node is not self.module and not isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            loop = node if isinstance(node, libcst.For | libcst.While) else loop
            node = self._parents[node]
        return self.place_of(loop) if loop is not None else None

    def name_of(self, module: str) -> str | None:
        """Local name of a module; None if the imports at the top do not bind it."""
        return next((local for local, full in self.aliases.items() if full == module), None)

    def full_name(self, function: libcst.BaseExpression) -> str:
        """Full name of a callee, with aliases resolved: "torch.utils.data.DataLoader"; "" for one without a name."""
        if isinstance(function, libcst.Name):
            return self.aliases.get(function.value, function.value)
        if isinstance(function, libcst.Attribute):
            return f"{self.full_name(function.value)}.{function.attr.value}"
        return ""

    def calls(self, accepted: Callable[[str], bool], line: int | None = None) -> list[libcst.Call]:
        """Calls whose full name is accepted and which cover `line`, at least in part; on any line for None."""
        calls = [node for node in self.nodes if isinstance(node, libcst.Call)]
        return [each for each in calls if accepted(self.full_name(each.func)) and self._is_on(each, line)]

    def calls_of(self, *names: str, line: int | None = None) -> list[libcst.Call]:
        """Calls of functions and methods with one of these last names."""
        return self.calls(lambda name: name.rpartition(".")[2] in names, line)

    def uses(self, *names: str) -> list[libcst.CSTNode]:
        """Calls and decorators with one of these last names, except `re.compile`."""
        found: list[libcst.CSTNode] = [
            call for call in self.calls_of(*names) if self.full_name(call.func) != "re.compile"
        ]
        decorators = (node.decorator for node in self.nodes if isinstance(node, libcst.Decorator))
        bare = (each for each in decorators if not isinstance(each, libcst.Call))
        return [*found, *(each for each in bare if self.full_name(each).rpartition(".")[2] in names)]

    def assigned(self, name: str) -> list[libcst.BaseExpression]:
        """Values that are assigned to an attribute with these last names."""
        return [
            node.value
            for node in self.nodes
            if isinstance(node, libcst.Assign)
            and any(f".{self.full_name(each.target)}".endswith(f".{name}") for each in node.targets)
        ]

    def _is_on(self, node: libcst.CSTNode, line: int | None) -> bool:
        position = self._positions[node]
        return line is None or position.start.line <= line <= position.end.line

    def names_bound(self, scope: Scope) -> frozenset[str]:
        """Names that plain assignments in a scope bind, without those of inner functions."""
        found: set[str] = set()
        for node in nodes_in(scope):
            targets: Sequence[libcst.BaseExpression] = ()
            if isinstance(node, libcst.Assign):
                targets = [each.target for each in node.targets]
            elif isinstance(node, libcst.AnnAssign) and node.value is not None:
                targets = [node.target]
            if targets and self.scope_of(node) is scope:
                found.update(name for target in targets for name in _names(target))
        return frozenset(found)


def parameters(scope: Scope) -> frozenset[str]:
    """Names of a function's parameters."""
    if isinstance(scope, libcst.Module):
        return frozenset()
    given = scope.params
    return frozenset(each.name.value for each in (*given.posonly_params, *given.params, *given.kwonly_params))


def nodes_in(node: libcst.CSTNode) -> list[libcst.CSTNode]:
    """A node and all its descendants, in text order."""
    return [node, *(inner for child in node.children for inner in nodes_in(child))]


def statements_of(block: Block) -> Sequence[Statement]:
    return [each for each in block.body if isinstance(each, libcst.SimpleStatementLine | libcst.BaseCompoundStatement)]


def _names(target: libcst.BaseExpression) -> Iterator[str]:
    if isinstance(target, libcst.Name):
        yield target.value
    elif isinstance(target, libcst.Tuple | libcst.List):
        for element in target.elements:
            yield from _names(element.value)


def _aliases(module: libcst.Module) -> Iterator[tuple[str, str]]:
    """(local name, full name) of the imports at the top of a file."""
    lines = [line for line in module.body if isinstance(line, libcst.SimpleStatementLine)]
    for each in (statement for line in lines for statement in line.body):
        if isinstance(each, libcst.Import):
            for alias in each.names:
                full = alias.evaluated_name
                first = full.split(".")[0]
                yield (alias.evaluated_alias, full) if alias.evaluated_alias else (first, first)
        elif isinstance(each, libcst.ImportFrom) and each.module is not None and not each.relative:
            source = get_full_name_for_node(each.module)
            for alias in () if isinstance(each.names, libcst.ImportStar) else each.names:
                yield alias.evaluated_alias or alias.evaluated_name, f"{source}.{alias.evaluated_name}"
