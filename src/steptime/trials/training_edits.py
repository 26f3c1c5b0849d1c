"""Edits around the training loop: autocast, a statement about the model, statements before the loop, switches.

One law: what is not certainly right is not written (None): the lines must be those that were recorded, in blocks of
their own, and names must mean there what they mean where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import libcst

from steptime.advice.fix import AutocastEdit, CopyEdit, LoopEdit, ModelEdit, SwitchEdit
from steptime.quantities import SourceLine
from steptime.trials.source import Block, SourceFile, Statement, StatementPlace, nodes_in, statements_of

TORCH = "torch"
NON_BLOCKING = "non_blocking"
SAVING = frozenset({"state_dict", "load_state_dict", "save", "save_pretrained"})
"""What makes the names of the parameters a matter of files: a compiled wrapper puts a prefix before them."""


def with_autocast(module: libcst.Module, edit: AutocastEdit) -> libcst.Module | None:
    """Forward and loss under autocast; None where forward and backward do not follow each other in one block, or the
    file has autocast already."""
    source = SourceFile(module)
    torch = source.name_of(TORCH)
    if torch is None or "autocast" in module.code or not _is_current(source, edit.forward, edit.backward):
        return None
    forward, backward = source.statement_at(edit.forward.line), source.statement_at(edit.backward.line)
    if forward is None or backward is None or forward.block is not backward.block or forward.index >= backward.index:
        return None
    statements = statements_of(forward.block)
    end = backward.index
    while end > forward.index + 1 and _clears_gradients(statements[end - 1]):
        end -= 1
    moved = statements[forward.index : end]
    context = libcst.parse_expression(f'{torch}.autocast("{edit.device}", dtype={torch}.{edit.dtype})')
    inside = libcst.IndentedBlock([moved[0].with_changes(leading_lines=()), *moved[1:]])
    wrapped = libcst.With([libcst.WithItem(context)], inside, leading_lines=moved[0].leading_lines)
    body = [*statements[: forward.index], wrapped, *statements[end:]]
    changed = forward.block.with_changes(body=body)
    if isinstance(changed, libcst.Module):
        return changed
    replaced = module.deep_replace(forward.block, changed)
    return replaced if isinstance(replaced, libcst.Module) else None


def with_model(module: libcst.Module, edit: ModelEdit) -> libcst.Module | None:
    """A statement about the model before its optimiser is made, or else before the training loop."""
    source = SourceFile(module)
    torch = source.name_of(TORCH)
    forward = source.statement_at(edit.forward.line)
    if torch is None or forward is None or not _is_current(source, edit.forward):
        return None
    call = _model_call(source, forward)
    if call is None or not isinstance(call.func, libcst.Name):
        return None
    model = call.func.value
    statement = edit.in_place if edit.prefixed and _is_saved(source, model) else edit.statement
    written = statement.format(model=model, torch=torch)
    place = _before_optimizer(source, edit, model, forward) or _before_loop(source, model, forward)
    if place is None or not written or written in module.code:
        return None
    new = {_key(place): [written]}
    if edit.batch:
        batch = call.args[0].value if len(call.args) == 1 and not (call.args[0].keyword or call.args[0].star) else None
        if not isinstance(batch, libcst.Name):  # several inputs: which of them are images is not known
            return None
        new.setdefault(_key(forward), []).append(edit.batch.format(batch=batch.value, torch=torch))
    return _inserted(module, new)


def with_loop(module: libcst.Module, edit: LoopEdit) -> libcst.Module | None:
    """Statements before the training loop, and the import that they need."""
    source = SourceFile(module)
    forward = source.statement_at(edit.forward.line)
    place = source.outermost_loop(forward.statement) if forward is not None else None
    if place is None or not _is_current(source, edit.forward) or edit.statements[-1] in module.code:
        return None
    changed = _inserted(module, {_key(place): list(edit.statements)})
    if source.name_of(edit.module) == edit.module:
        return changed
    return with_import(changed, edit.module)


def with_switch(module: libcst.Module, edit: SwitchEdit) -> libcst.Module | None:
    """Calls that switch something on by a literal True switch it off. None where it may be on all the same, by a value
    that is not known here or in another way."""
    source = SourceFile(module)
    calls = source.calls(lambda name: name.rpartition(".")[2] == edit.callee)
    given = [call.args[0].value for call in calls if call.args and not call.args[0].star]
    if edit.value == "False":
        given += source.assigned(edit.assigned) if edit.assigned else []
        literal = [each for each in given if isinstance(each, libcst.Name) and each.value in ("True", "False")]
        if len(literal) < len(given) or source.uses(lambda name: name.rpartition(".")[2] in edit.others):
            return None
        given = [each for each in literal if each.value == "True"]
    elif len(calls) != 1:
        return None
    changed = module.visit(_Replacer(given, libcst.parse_expression(edit.value)))
    return changed if isinstance(changed, libcst.Module) and given else None


def with_copies(module: libcst.Module, edit: CopyEdit) -> libcst.Module | None:
    """Copies on a line with non_blocking=True. None where there is none, or one whose arguments may hold it already:
    what stands behind the device may be a dtype or that."""
    source = SourceFile(module)
    calls = source.calls(lambda name: name.rpartition(".")[2] in ("to", "cuda"), edit.site.line)
    calls = [call for call in calls if isinstance(call.func, libcst.Attribute)]
    named = [{each.keyword.value for each in call.args if each.keyword} for call in calls]
    positional = [[each for each in call.args if not each.keyword] for call in calls]
    if not calls or not _is_current(source, edit.site) or any(each.star for call in calls for each in call.args):
        return None
    if any(NON_BLOCKING in names or len(given) > 1 for names, given in zip(named, positional, strict=True)):
        return None
    changed = module.visit(_KeywordAdder(calls, NON_BLOCKING, "True"))
    return changed if isinstance(changed, libcst.Module) else None


def with_import(module: libcst.Module, name: str) -> libcst.Module | None:
    """`import name` among the imports at the top, in the order of the alphabet where those are in it; None where there
    is none."""
    plain = [index for index, statement in enumerate(module.body) if _imported(statement)]
    if not plain:
        return None
    later = next((index for index in plain if _imported(module.body[index]) > name), plain[0])
    return _inserted(module, {(id(module), later): [f"import {name}"]})


def _imported(statement: libcst.CSTNode) -> str:
    """The first name of a plain import, "" for everything else."""
    first = statement.body[0] if isinstance(statement, libcst.SimpleStatementLine) else None
    return first.names[0].evaluated_name if isinstance(first, libcst.Import) else ""


def _clears_gradients(statement: Statement) -> bool:
    """`optimizer.zero_grad()` between loss and backward is none of autocast's business."""
    calls = [node for node in nodes_in(statement) if isinstance(node, libcst.Call)]
    return len(calls) == 1 and isinstance(calls[0].func, libcst.Attribute) and calls[0].func.attr.value == "zero_grad"


# -- where ------------------------------------------------------------------------------------------------------------


def _is_current(source: SourceFile, *lines: SourceLine) -> bool:
    return all(source.is_line(each.line, each.text) for each in lines)


def _model_call(source: SourceFile, forward: StatementPlace) -> libcst.Call | None:
    """The call in the forward's statement of the one name whose parameters the file asks for."""
    asked = {
        node.func.value.value
        for node in nodes_in(source.module)
        if isinstance(node, libcst.Call)
        and isinstance(node.func, libcst.Attribute)
        and node.func.attr.value == "parameters"
        and isinstance(node.func.value, libcst.Name)
    }
    calls = [
        node
        for node in nodes_in(forward.statement)
        if isinstance(node, libcst.Call) and isinstance(node.func, libcst.Name) and node.func.value in asked
    ]
    return calls[0] if len(calls) == 1 else None


def _before_optimizer(
    source: SourceFile, edit: ModelEdit, model: str, forward: StatementPlace
) -> StatementPlace | None:
    """The statement that makes the optimiser of the model's parameters, if both names mean the same module."""
    site = edit.optimizer
    if site is None or Path(site.file).name != Path(edit.forward.file).name or not _is_current(source, site):
        return None
    place = source.statement_at(site.line)
    if place is None or f"{model}.parameters()" not in source.module.code_for_node(place.statement):
        return None
    scope, used = source.scope_of(place.statement), source.scope_of(forward.statement)
    if scope is None or used is None:
        return None
    if scope is used:
        own = model in source.names_bound(scope) or isinstance(scope, libcst.Module)
        return place if own else None
    handed_on = model in source.parameters(used) or isinstance(scope, libcst.Module)
    return place if handed_on and model in source.names_bound(scope) else None


def _before_loop(source: SourceFile, model: str, forward: StatementPlace) -> StatementPlace | None:
    """The training loop, where the model was made in the same function: not one that is handed over again and again."""
    scope = source.scope_of(forward.statement)
    if scope is None or model not in source.names_bound(scope):
        return None
    return source.outermost_loop(forward.statement)


def _is_saved(source: SourceFile, model: str) -> bool:
    for node in nodes_in(source.module):
        if not isinstance(node, libcst.Call) or not isinstance(node.func, libcst.Attribute):
            continue
        if node.func.attr.value not in SAVING:
            continue
        names = [node.func.value, *(each.value for each in node.args)]
        if any(isinstance(each, libcst.Name) and each.value == model for each in names):
            return True
    return False


# -- writing ----------------------------------------------------------------------------------------------------------


def _key(place: StatementPlace) -> tuple[int, int]:
    return id(place.block), place.index


class _Replacer(libcst.CSTTransformer):
    """Puts an expression in the place of some others."""

    def __init__(self, old: Sequence[libcst.BaseExpression], new: libcst.BaseExpression) -> None:
        super().__init__()
        self._old, self._new = {id(each) for each in old}, new

    def on_leave(
        self, original_node: libcst.CSTNodeT, updated_node: libcst.CSTNodeT
    ) -> libcst.CSTNodeT | libcst.RemovalSentinel | libcst.FlattenSentinel[libcst.CSTNodeT]:
        if id(original_node) in self._old:
            return self._new.deep_clone()  # type: ignore[return-value]  # an expression for an expression
        return super().on_leave(original_node, updated_node)


class _KeywordAdder(libcst.CSTTransformer):
    """Gives some calls one more argument, by name."""

    def __init__(self, calls: Sequence[libcst.Call], name: str, value: str) -> None:
        super().__init__()
        self._calls, self._name, self._value = {id(each) for each in calls}, name, value

    def leave_Call(self, original_node: libcst.Call, updated_node: libcst.Call) -> libcst.Call:
        if id(original_node) not in self._calls:
            return updated_node
        tight = libcst.AssignEqual(libcst.SimpleWhitespace(""), libcst.SimpleWhitespace(""))
        new = libcst.Arg(libcst.parse_expression(self._value), libcst.Name(self._name), tight)
        return updated_node.with_changes(args=[*updated_node.args, new])


class _Inserter(libcst.CSTTransformer):
    """Puts statements before others. new: by block (its identity) and index of the statement that they come before."""

    def __init__(self, new: Mapping[tuple[int, int], Sequence[str]], config: libcst.PartialParserConfig) -> None:
        super().__init__()
        self._new, self._config = new, config

    def leave_IndentedBlock(
        self, original_node: libcst.IndentedBlock, updated_node: libcst.IndentedBlock
    ) -> libcst.IndentedBlock:
        return updated_node.with_changes(body=self._body(original_node, updated_node))

    def leave_Module(self, original_node: libcst.Module, updated_node: libcst.Module) -> libcst.Module:
        return updated_node.with_changes(body=self._body(original_node, updated_node))

    def _body(self, original: Block, updated: Block) -> list[Statement]:
        body: list[Statement] = []
        for index, statement in enumerate(statements_of(updated)):
            texts = self._new.get((id(original), index), ())
            added = [libcst.parse_statement(text, self._config) for text in texts]
            if added:
                blank, kept = _split(statement.leading_lines)
                added[0] = added[0].with_changes(leading_lines=blank)
                statement = statement.with_changes(leading_lines=kept)
            body += [*added, statement]
        return body


def _split(lines: Sequence[libcst.EmptyLine]) -> tuple[Sequence[libcst.EmptyLine], Sequence[libcst.EmptyLine]]:
    """The blank lines above a statement; and its comments, which stay with it."""
    count = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
    return lines[:count], lines[count:]


def _inserted(module: libcst.Module, new: Mapping[tuple[int, int], Sequence[str]]) -> libcst.Module:
    changed = module.visit(_Inserter(new, module.config_for_parsing))
    assert isinstance(changed, libcst.Module)
    return changed
