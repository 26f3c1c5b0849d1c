"""A source file as edits look at it: its statements by line, its loops, what names mean. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst
from libcst import metadata

Block = libcst.Module | libcst.IndentedBlock
Statement = libcst.SimpleStatementLine | libcst.BaseCompoundStatement
Scope = libcst.Module | libcst.FunctionDef


@dataclass(frozen=True, slots=True)
class StatementPlace:
    """A statement in the block that it stands in."""

    block: Block
    index: int
    statement: Statement


class SourceFile:
    """A parsed file. `aliases`: full names by the names that imports at the top of it bind."""

    def __init__(self, module: libcst.Module) -> None:
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = module
        self._parents: Mapping[libcst.CSTNode, libcst.CSTNode] = wrapper.resolve(metadata.ParentNodeProvider)
        self._positions: Mapping[libcst.CSTNode, metadata.CodeRange] = wrapper.resolve(metadata.PositionProvider)
        self._lines = module.code.split("\n")
        self.aliases = dict(_aliases(module))

    def is_line(self, line: int, text: str) -> bool:
        """Whether the file still has that text (stripped) there; any text is right where none is known."""
        return 0 < line <= len(self._lines) and text in ("", self._lines[line - 1].strip())

    def statement_at(self, line: int) -> StatementPlace | None:
        """The innermost statement of a block that covers a line; None for the head of a compound one, and for what
        stands behind a colon."""
        block: Block = self.module
        while True:
            place = self._in_block(block, line)
            if place is None:
                return None
            if isinstance(place.statement, libcst.SimpleStatementLine):
                return place
            inner = next((each for each in _blocks_of(place.statement) if self._in_block(each, line)), None)
            if inner is None:
                return None
            block = inner

    def _in_block(self, block: Block, line: int) -> StatementPlace | None:
        for index, statement in enumerate(statements_of(block)):
            position = self._positions[statement]
            if position.start.line <= line <= position.end.line:
                return StatementPlace(block, index, statement)
        return None

    def place_of(self, node: libcst.CSTNode) -> StatementPlace | None:
        """The statement, directly in a block, that a node lies in or is."""
        while node is not self.module:
            parent = self._parents[node]
            if isinstance(parent, libcst.Module | libcst.IndentedBlock):
                for index, statement in enumerate(statements_of(parent)):
                    if statement is node:
                        return StatementPlace(parent, index, statement)
            node = parent
        return None

    def scope_of(self, node: libcst.CSTNode) -> Scope | None:
        """The function, or the module, whose names a node binds; None inside of a class's body or a lambda."""
        while node is not self.module:
            node = self._parents[node]
            if isinstance(node, libcst.FunctionDef):
                return node
            if isinstance(node, libcst.ClassDef | libcst.Lambda):
                return None
        return self.module

    def outermost_loop(self, node: libcst.CSTNode) -> StatementPlace | None:
        """The outermost loop around a node in its function."""
        loop: libcst.CSTNode | None = None
        while node is not self.module and not isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            loop = node if isinstance(node, libcst.For | libcst.While) else loop
            node = self._parents[node]
        return self.place_of(loop) if loop is not None else None

    def name_of(self, module: str) -> str | None:
        """What the file calls a module; None where it is not imported at its top under a single name."""
        return next((local for local, full in self.aliases.items() if full == module), None)

    def full_name(self, function: libcst.BaseExpression) -> str:
        """Of what is called, with aliases resolved: "torch.utils.data.DataLoader"; "" for what has no name."""
        if isinstance(function, libcst.Name):
            return self.aliases.get(function.value, function.value)
        if isinstance(function, libcst.Attribute):
            before = self.full_name(function.value)
            return f"{before}.{function.attr.value}" if before else f".{function.attr.value}"
        return ""

    def calls(self, accepted: Callable[[str], bool], line: int | None = None) -> list[libcst.Call]:
        """Calls of what is accepted by its full name, that stand (at least in part) on a line, or anywhere."""
        return [
            node
            for node in nodes_in(self.module)
            if isinstance(node, libcst.Call) and accepted(self.full_name(node.func)) and self._is_on(node, line)
        ]

    def uses(self, accepted: Callable[[str], bool]) -> list[libcst.CSTNode]:
        """Calls and decorators of what is accepted by its full name. `re.compile` is nobody's."""
        found: list[libcst.CSTNode] = list(self.calls(lambda name: name != "re.compile" and accepted(name)))
        decorators = (node.decorator for node in nodes_in(self.module) if isinstance(node, libcst.Decorator))
        bare = (each for each in decorators if not isinstance(each, libcst.Call))
        return [*found, *(each for each in bare if accepted(self.full_name(each)))]

    def sets(self, name: str) -> bool:
        """Whether an attribute with these last names is assigned to, or a function with this last name called."""
        return bool(self.calls(lambda called: called.rpartition(".")[2] == name) or self.assigned(name))

    def assigned(self, name: str) -> list[libcst.BaseExpression]:
        """The values that an attribute with these last names is set to."""
        return [
            node.value
            for node in nodes_in(self.module)
            if isinstance(node, libcst.Assign)
            and any(f".{self.full_name(each.target)}".endswith(f".{name}") for each in node.targets)
        ]

    def _is_on(self, node: libcst.CSTNode, line: int | None) -> bool:
        position = self._positions[node]
        return line is None or position.start.line <= line <= position.end.line

    def names_bound(self, scope: Scope) -> frozenset[str]:
        """Names that plain assignments in a scope bind, inner functions left out."""
        found = set()
        for node in nodes_in(scope):
            targets: Sequence[libcst.BaseExpression] = ()
            if isinstance(node, libcst.Assign):
                targets = [each.target for each in node.targets]
            elif isinstance(node, libcst.AnnAssign) and node.value is not None:
                targets = [node.target]
            if targets and self.scope_of(node) is scope:
                found |= {name for target in targets for name in _names(target)}
        return frozenset(found)

    def parameters(self, scope: Scope) -> frozenset[str]:
        """Names of a function's parameters."""
        if isinstance(scope, libcst.Module):
            return frozenset()
        given = scope.params
        return frozenset(each.name.value for each in (*given.posonly_params, *given.params, *given.kwonly_params))


class _Collector(libcst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[libcst.CSTNode] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        self.found.append(node)
        return True


def nodes_in(node: libcst.CSTNode) -> list[libcst.CSTNode]:
    """A node and all below it, in the order of the text."""
    collector = _Collector()
    node.visit(collector)
    return collector.found


def statements_of(block: Block) -> Sequence[Statement]:
    """The statements of a block; it holds nothing else."""
    return [each for each in block.body if isinstance(each, libcst.SimpleStatementLine | libcst.BaseCompoundStatement)]


def _names(target: libcst.BaseExpression) -> Iterator[str]:
    if isinstance(target, libcst.Name):
        yield target.value
    elif isinstance(target, libcst.Tuple | libcst.List):
        for element in target.elements:
            yield from _names(element.value)


def _blocks_of(statement: Statement) -> Iterator[libcst.IndentedBlock]:
    """The indented blocks of a compound statement: of its branches, handlers and cases too."""
    for child in statement.children:
        if isinstance(child, libcst.IndentedBlock):
            yield child
        elif isinstance(
            child,
            libcst.Else
            | libcst.If
            | libcst.ExceptHandler
            | libcst.ExceptStarHandler
            | libcst.Finally
            | libcst.MatchCase,
        ):
            yield from _blocks_of(child)  # type: ignore[arg-type]


def _aliases(module: libcst.Module) -> Iterator[tuple[str, str]]:
    """(local name, full name) of the imports at the top of a file."""
    for statement in module.body:
        if not isinstance(statement, libcst.SimpleStatementLine):
            continue
        for each in statement.body:
            if isinstance(each, libcst.Import):
                for alias in each.names:
                    full = alias.evaluated_name
                    first = full.split(".")[0]
                    yield (alias.evaluated_alias, full) if alias.evaluated_alias else (first, first)
            elif isinstance(each, libcst.ImportFrom) and each.module is not None and not each.relative:
                source = dotted(each.module)
                for alias in () if isinstance(each.names, libcst.ImportStar) else each.names:
                    yield alias.evaluated_alias or alias.evaluated_name, f"{source}.{alias.evaluated_name}"


def dotted(name: libcst.BaseExpression) -> str:
    """As it is written: "torch.backends.cudnn"; "" for what has no name."""
    if isinstance(name, libcst.Attribute):
        return f"{dotted(name.value)}.{name.attr.value}"
    return name.value if isinstance(name, libcst.Name) else ""
