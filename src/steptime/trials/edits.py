"""Edits of a parsed source file, with its formatting kept.

One law: what is not certainly right is not written (None): a call must be found at its recorded line, and nowhere else
on it; statements must be those that were recorded, and names must mean there what they mean where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import libcst
from libcst.helpers import get_full_name_for_node

from steptime.advice.activations import activation_of
from steptime.advice.fix import (
    ActivationEdit,
    ArgumentEdit,
    AutocastEdit,
    CallEdit,
    CopyEdit,
    DecoratorEdit,
    DeferEdit,
    LoopEdit,
    ModelEdit,
    SingleEdit,
    StatementEdit,
    SwitchEdit,
)
from steptime.quantities import SourceLine
from steptime.trials.deferred import deferred
from steptime.trials.source import SourceFile, Statement, StatementPlace, nodes_in, parameters, statements_of

USUAL_POSITIONAL = 5
"""Arguments without a name: the sixth of DataLoader is num_workers, optimizers take theirs by name only from about
there on."""
MOST_POSITIONAL = {"zero_grad": 0, "torch.compile": 1}
"""Names of calls whose next argument is the one to be set."""
TORCH = "torch"
NON_BLOCKING = "non_blocking"
SAVING = ("state_dict", "load_state_dict", "save", "save_pretrained")
"""Names that show that parameter names go into files: a compiled wrapper puts a prefix before them."""
_NONE = libcst.SimpleWhitespace("")


def apply_edit(edit: SingleEdit, source: str) -> str | None:
    """The source with the edit in it; None where that cannot be written safely."""
    try:
        module = libcst.parse_module(source)
    except libcst.ParserSyntaxError:
        return None
    changed = EDITORS[type(edit)](module, edit) if type(edit) in EDITORS else None
    return changed.code if changed is not None and changed.code != source else None


# -- calls ------------------------------------------------------------------------------------------------------------


def with_keywords(module: libcst.Module, edit: CallEdit) -> libcst.Module | None:
    """The call with other keywords; None where what is given without a name may be what is to be set. A mapping
    (`**options`) comes first, so that the edit is set over it."""
    call = _call(module, edit)
    if call is None or [argument.star for argument in call.args if argument.star] not in ([], ["**"]):
        return None
    if sum(argument.keyword is None for argument in call.args) > MOST_POSITIONAL.get(edit.callee, USUAL_POSITIONAL):
        return None
    return _with_arguments(module, [call], edit.keywords)


def with_argument(module: libcst.Module, edit: ArgumentEdit) -> libcst.Module | None:
    """A call with one argument in an expression. None where the call is made again and again, where the file asks for
    the argument as it was, and where it is not given as the first one or by its name."""
    source, call = SourceFile(module), _call(module, CallEdit(edit.callee, (), edit.site))
    if call is None:
        return None
    again = libcst.For | libcst.While | libcst.CompFor | libcst.Lambda
    if any(isinstance(each, again) for each in source.around(call)):
        return None
    if any(_asks_for(source, node, edit.apart) for node in source.nodes):
        return None
    given = [each.value for each in call.args if each.keyword is not None and each.keyword.value == edit.argument]
    given += [each.value for each in call.args[:1] if each.keyword is None and not each.star]
    if len(given) != 1:
        return None
    (value,) = given
    named = isinstance(value, libcst.Name) or get_full_name_for_node(value) == module.code_for_node(value)
    written = (edit.plain if named else edit.once).format(value=module.code_for_node(value))
    names = {node.value for node in nodes_in(value) if isinstance(node, libcst.Name)}
    targets = [node.target for node in nodes_in(libcst.parse_expression(written)) if isinstance(node, libcst.CompFor)]
    if any(isinstance(target, libcst.Name) and target.value in names for target in targets):
        return None
    return _rewritten(module, {value: partial(_parsed, written)})


def _asks_for(source: SourceFile, node: libcst.CSTNode, names: Sequence[str]) -> bool:
    """True if a node is an attribute with one of these names, of which more is asked than its length. The options of a
    command line may have such names, too."""
    if not isinstance(node, libcst.Attribute) or node.attr.value not in names:
        return False
    around = source.around(node)
    whole = around[1] if isinstance(around[0], libcst.Arg) else None
    if isinstance(whole, libcst.Call) and isinstance(whole.func, libcst.Name) and whole.func.value == "len":
        return False
    parsed = [each for call in source.calls_of("parse_args") for each in source.around(call)[:1]]
    targets = [each.target for line in parsed if isinstance(line, libcst.Assign) for each in line.targets]
    options = {target.value for target in targets if isinstance(target, libcst.Name)}
    return not (isinstance(node.value, libcst.Name) and node.value.value in options)


def with_copies(module: libcst.Module, edit: CopyEdit) -> libcst.Module | None:
    """Copies on a line with non_blocking=True. None where there is none, or one whose arguments may hold it already:
    what follows the device may be a dtype or that."""
    source = SourceFile(module)
    calls = source.calls_of("to", "cuda", line=edit.site.line)
    calls = [call for call in calls if isinstance(call.func, libcst.Attribute)]
    if not calls or not _is_current(source, edit.site):
        return None
    for call in calls:
        names = [each.keyword.value for each in call.args if each.keyword]
        if any(each.star for each in call.args) or NON_BLOCKING in names or len(call.args) - len(names) > 1:
            return None
    return _with_arguments(module, calls, ((NON_BLOCKING, "True"),))


def with_switch(module: libcst.Module, edit: SwitchEdit) -> libcst.Module | None:
    """Calls that switch something on by a literal True switch it off. None where it may be on all the same, by a value
    that is not known here or in another way."""
    source = SourceFile(module)
    calls = source.calls_of(edit.callee)
    given = [call.args[0].value for call in calls if call.args and not call.args[0].star]
    if edit.value == "False":
        given += source.assigned(edit.assigned) if edit.assigned else []
        literal = [each for each in given if isinstance(each, libcst.Name) and each.value in ("True", "False")]
        if len(literal) < len(given) or source.uses(*edit.others):
            return None
        given = [each for each in literal if each.value == "True"]
    elif len(calls) != 1:
        return None
    value = libcst.parse_expression(edit.value)
    return _rewritten(module, {each: lambda _: value.deep_clone() for each in given})


def replaced_arguments(edit: CallEdit, source: str) -> list[str]:
    """Values other than plain ones that the edit removes from a source, in words, and those that a mapping may hold."""
    module = libcst.parse_module(source)
    call = _call(module, edit)
    arguments = call.args if call is not None else ()
    given = {each.keyword.value: each.value for each in arguments if each.keyword}
    over = ", ".join(name for name, _ in edit.keywords if name not in given)
    mappings = [each.value for each in arguments if over and each.star == "**"]
    packed = [f"**{module.code_for_node(each)} no longer sets {over}" for each in mappings]
    return packed + [
        f"{name}={module.code_for_node(given[name])} is {value} now"
        for name, value in edit.keywords
        if name in given and not _is_plain(given[name])
    ]


def through_options(edit: CallEdit, source: str, given: frozenset[str] = frozenset()) -> tuple[CallEdit, str]:
    """An edit of a value that comes from an option of the command line (argparse) becomes that option's new default, so
    that the option keeps its effect: the rest of the edit, and the source with the new defaults. given: options on the
    job's own command line, which a default would not change."""
    module = libcst.parse_module(source)
    call = _call(module, edit)
    values = {each.keyword.value: each.value for each in call.args if each.keyword} if call is not None else {}
    new: dict[libcst.CSTNode, Callable[[Any], Any]] = {}
    keywords = dict(edit.keywords)
    for name, value in edit.keywords:
        default = _default_of(SourceFile(module), values.get(name), given)
        if default is None or (name == "num_workers" and "prefetch_factor" in keywords):
            continue
        new[default] = partial(_parsed, value)
        del keywords[name]
        if name == "num_workers" and keywords.get("persistent_workers") == "True":  # without workers, it is an error
            keywords["persistent_workers"] = f"{module.code_for_node(values[name])} > 0"
    changed = _rewritten(module, new) if new else module
    return replace(edit, keywords=tuple(keywords.items())), (changed or module).code


def _parsed(value: str, _: Any) -> libcst.BaseExpression:
    return libcst.parse_expression(value)


def _default_of(
    source: SourceFile, value: libcst.BaseExpression | None, given: frozenset[str]
) -> libcst.BaseExpression | None:
    """The plain default of the option that a value is ("arguments.workers"), where the option is used once; None for
    any other value, and for what was given."""
    if not isinstance(value, libcst.Attribute) or not isinstance(value.value, libcst.Name):
        return None
    name = value.attr.value
    used = [each for each in nodes_in(source.module) if isinstance(each, libcst.Attribute) and each.attr.value == name]
    found = list[tuple[bool, libcst.BaseExpression | None]]()
    for call in source.calls_of("add_argument"):
        words = [each.value.evaluated_value for each in call.args if isinstance(each.value, libcst.SimpleString)]
        keywords = {each.keyword.value: each.value for each in call.args if each.keyword}
        if f"--{name}" in words or f"--{name.replace('_', '-')}" in words:
            found.append((given.isdisjoint(words) and "dest" not in keywords, keywords.get("default")))
    if len(used) != 1 or len(found) != 1:
        return None
    ((free, default),) = found
    return default if free and default is not None and _is_plain(default) else None


def _call(module: libcst.Module, edit: CallEdit) -> libcst.Call | None:
    """The one that is meant; None where there is none, or several."""
    source = SourceFile(module)
    line = edit.site.line if edit.site is not None else None
    found = source.calls(lambda name: f".{name}".endswith(f".{edit.callee}"), line)
    alike = found if edit.site is not None else source.uses(edit.callee.rpartition(".")[2])
    return found[0] if len(found) == 1 and all(each is found[0] for each in alike) else None


def _is_plain(value: libcst.BaseExpression) -> bool:
    if isinstance(value, libcst.Name):
        return value.value in ("True", "False", "None")
    return isinstance(value, libcst.Integer | libcst.Float | libcst.SimpleString)


def _with_arguments(
    module: libcst.Module, calls: Sequence[libcst.Call], keywords: Sequence[tuple[str, str]]
) -> libcst.Module | None:
    if any(_arguments_with(call.args, keywords) is None for call in calls):
        return None

    def write(call: libcst.Call) -> libcst.Call:
        return call.with_changes(args=_arguments_with(call.args, keywords))

    return _rewritten(module, dict.fromkeys(calls, write))


def _arguments_with(given: Sequence[libcst.Arg], keywords: Sequence[tuple[str, str]]) -> list[libcst.Arg] | None:
    """Existing keywords get the new value in their place; others are set over a mapping of the call (`**options`), else
    added at the end, in the call's own style. A value that only takes an option back (False, None, 0) is not added
    where nothing was. None where a comment is in the way."""
    arguments = list(given)
    packed = next((number for number, each in enumerate(arguments) if each.star == "**"), None)
    for name, value in keywords:
        expression = libcst.parse_expression(value)
        place = next(
            (number for number, each in enumerate(arguments) if each.keyword and each.keyword.value == name), None
        )
        if place is not None:
            arguments[place] = arguments[place].with_changes(value=expression)
        elif packed is not None:
            options = _set_over(arguments[packed].value, name, expression)
            arguments[packed] = arguments[packed].with_changes(value=options)
        elif value not in ("False", "None", "0"):
            appended = _appended(arguments, name, expression)
            if appended is None:
                return None
            arguments = appended
    return arguments


def _set_over(mapping: libcst.BaseExpression, name: str, value: libcst.BaseExpression) -> libcst.Dict:
    """A mapping with another value of an option: `{**options, "name": value}`."""
    whole = mapping if isinstance(mapping, libcst.Dict) else libcst.Dict([libcst.StarredDictElement(mapping)])
    elements = list(whole.elements)
    for number, each in enumerate(elements):
        key = each.key if isinstance(each, libcst.DictElement) else None
        if isinstance(key, libcst.SimpleString) and key.evaluated_value == name:
            elements[number] = each.with_changes(value=value)
            return whole.with_changes(elements=elements)
    return whole.with_changes(elements=[*elements, libcst.DictElement(libcst.SimpleString(f'"{name}"'), value)])


def _appended(arguments: list[libcst.Arg], name: str, value: libcst.BaseExpression) -> list[libcst.Arg] | None:
    """The arguments with one more. The comma between the last two is the model of the new one; comments stay where
    they are."""
    new = libcst.Arg(value, libcst.Name(name), equal=libcst.AssignEqual(_NONE, _NONE))
    if not arguments:
        return [new]
    last, comma = arguments[-1], libcst.Comma(whitespace_after=libcst.SimpleWhitespace(" "))
    if len(arguments) > 1 and isinstance(arguments[-2].comma, libcst.Comma):
        comma = _without_comment(arguments[-2].comma)
    if isinstance(last.comma, libcst.Comma):
        comment = _commented(last.comma.whitespace_after)
        if comment is not None:
            if not isinstance(comma.whitespace_after, libcst.ParenthesizedWhitespace):
                return None
            comma = comma.with_changes(whitespace_after=comma.whitespace_after.with_changes(first_line=comment))
        new = new.with_changes(comma=_without_comment(last.comma))
    elif _commented(last.whitespace_after_arg) is not None:
        return None
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=_NONE)
    return [*arguments[:-1], last.with_changes(comma=comma), new]


def _without_comment(comma: libcst.Comma) -> libcst.Comma:
    space = comma.whitespace_after
    if not isinstance(space, libcst.ParenthesizedWhitespace):
        return comma
    first = space.first_line.with_changes(comment=None, whitespace=_NONE)
    return comma.with_changes(whitespace_after=space.with_changes(first_line=first, empty_lines=[]))


def _commented(space: libcst.BaseParenthesizableWhitespace) -> libcst.TrailingWhitespace | None:
    """The end of the line that the space starts on, if there is a comment."""
    first = space.first_line if isinstance(space, libcst.ParenthesizedWhitespace) else None
    return first if first is not None and first.comment is not None else None


# -- statements -------------------------------------------------------------------------------------------------------


def with_statement(module: libcst.Module, edit: StatementEdit) -> libcst.Module | None:
    """The statement after the imports at the top; None where the module that it needs is not imported there under its
    own name, or the file sets the same thing already, which would have the last word."""
    source, name = SourceFile(module), _set_by(edit.statement)
    if source.calls_of(name) or source.assigned(name):
        return None
    imports = [number for number, statement in enumerate(module.body) if _imports(statement) is not None]
    if not any(edit.module in (_imports(module.body[number]) or ()) for number in imports):
        return None
    added = libcst.parse_statement(edit.statement + module.default_newline)
    added = added.with_changes(leading_lines=[libcst.EmptyLine(indent=False)])
    return module.with_changes(body=[*module.body[: imports[-1] + 1], added, *module.body[imports[-1] + 1 :]])


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
    first, *others = statements[forward.index : end]
    context = libcst.parse_expression(f'{torch}.autocast("{edit.device}", dtype={torch}.{edit.dtype})')
    inside = libcst.IndentedBlock([first.with_changes(leading_lines=()), *others])
    wrapped = libcst.With([libcst.WithItem(context)], inside, leading_lines=first.leading_lines)
    body = [*statements[: forward.index], wrapped, *statements[end:]]
    return _rewritten(module, {forward.block: lambda block: block.with_changes(body=body)})


def with_model(module: libcst.Module, edit: ModelEdit) -> libcst.Module | None:
    """A statement about the model before its optimizer is made, or else before the training loop."""
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
    new: dict[libcst.CSTNode, Sequence[str]] = {place.statement: [written]}
    needed = _import_of(source, edit.module)
    if needed is None:
        return None
    new |= needed
    if edit.batch:
        batch = call.args[0].value if len(call.args) == 1 and not (call.args[0].keyword or call.args[0].star) else None
        if not isinstance(batch, libcst.Name):  # several inputs: which of them are images is not known
            return None
        before = new.get(forward.statement, ())
        new[forward.statement] = [*before, edit.batch.format(batch=batch.value, torch=torch)]
    return _inserted(module, new)


def with_loop(module: libcst.Module, edit: LoopEdit) -> libcst.Module | None:
    """Statements before the training loop, and the import that they need among those at the top, in the order of the
    alphabet where these are in it."""
    source = SourceFile(module)
    forward = source.statement_at(edit.forward.line)
    place = source.outermost_loop(forward.statement) if forward is not None else None
    if place is None or not _is_current(source, edit.forward) or edit.statements[-1] in module.code:
        return None
    needed = _import_of(source, edit.module)
    return _inserted(module, {place.statement: edit.statements, **needed}) if needed is not None else None


def _import_of(source: SourceFile, name: str) -> dict[libcst.CSTNode, Sequence[str]] | None:
    """The import of a module, by the line that it is before; empty where it is there, or none is needed ("").
    None where there is no plain import that it could stand beside."""
    if not name or source.name_of(name) == name:
        return {}
    plain = [line for line in source.module.body if _imported_first(line)]
    if not plain:
        return None
    return {next((line for line in plain if _imported_first(line) > name), plain[0]): [f"import {name}"]}


def with_deferred(module: libcst.Module, edit: DeferEdit) -> libcst.Module | None:
    """A sum that stays on the device. See `deferred`."""
    source = SourceFile(module)
    new = deferred(source, edit) if _is_current(source, edit.site) else None
    return _rewritten(module, new) if new is not None else None


def with_decorator(module: libcst.Module, edit: DecoratorEdit) -> libcst.Module | None:
    """The function compiled where it is defined: at the top of a file, or in a class there. None for one that has a
    decorator, or yields, or waits."""
    source = SourceFile(module)
    torch, place = source.name_of(TORCH), source.statement_at(edit.site.line)
    function = source.scope_of(place.statement) if place is not None and _is_current(source, edit.site) else None
    if torch is None or not isinstance(function, libcst.FunctionDef) or function.name.value != edit.function:
        return None
    inside = nodes_in(function.body)
    generator = any(isinstance(each, libcst.Yield | libcst.FunctionDef | libcst.Nonlocal) for each in inside)
    outer = [each for each in source.around(function) if isinstance(each, libcst.FunctionDef)]
    if function.decorators or function.asynchronous is not None or generator or outer:
        return None
    added = libcst.Decorator(libcst.parse_expression(f"{torch}.compile"), leading_lines=function.leading_lines)
    return _rewritten(module, {function: lambda each: each.with_changes(decorators=[added], leading_lines=())})


def with_activation(module: libcst.Module, edit: ActivationEdit) -> libcst.Module | None:
    """A formula of one variable as the function that torch has for it: the outermost one of the statement that is
    known by its values."""
    source = SourceFile(module)
    torch, place = source.name_of(TORCH), source.statement_at(edit.site.line)
    if torch is None or place is None or not _is_current(source, edit.site):
        return None
    for node in nodes_in(place.statement):
        if isinstance(node, libcst.BinaryOperation | libcst.Call):
            found = activation_of(module.code_for_node(node))
            if found is not None:
                return _rewritten(module, {node: partial(_parsed, f"{torch}.nn.functional.{found.call}")})
    return None


def _set_by(statement: str) -> str:
    """The last names of what a statement assigns to ("cudnn.benchmark"), or calls ("set_num_threads")."""
    (single,) = libcst.parse_module(statement).body
    target = single.body[0] if isinstance(single, libcst.SimpleStatementLine) else single
    if isinstance(target, libcst.Assign):
        return ".".join((get_full_name_for_node(target.targets[0].target) or "").split(".")[-2:])
    call = target.value if isinstance(target, libcst.Expr) else None
    return (get_full_name_for_node(call.func) or "").rpartition(".")[2] if isinstance(call, libcst.Call) else ""


def _imports(statement: libcst.CSTNode) -> list[str] | None:
    """The modules that a line of imports binds under their own names; None for a line without imports."""
    body = statement.body if isinstance(statement, libcst.SimpleStatementLine) else ()
    if not any(isinstance(each, libcst.Import | libcst.ImportFrom) for each in body):
        return None
    aliases = (alias for each in body if isinstance(each, libcst.Import) for alias in each.names)
    return [alias.evaluated_name.split(".")[0] for alias in aliases if alias.asname is None]


def _imported_first(statement: libcst.CSTNode) -> str:
    """The first name of a plain import, "" for everything else."""
    first = statement.body[0] if isinstance(statement, libcst.SimpleStatementLine) else None
    return first.names[0].evaluated_name if isinstance(first, libcst.Import) else ""


def _clears_gradients(statement: Statement) -> bool:
    """`optimizer.zero_grad()` between loss and backward needs no autocast."""
    calls = [node for node in nodes_in(statement) if isinstance(node, libcst.Call)]
    return len(calls) == 1 and isinstance(calls[0].func, libcst.Attribute) and calls[0].func.attr.value == "zero_grad"


# -- where ------------------------------------------------------------------------------------------------------------


def _is_current(source: SourceFile, *lines: SourceLine) -> bool:
    return all(source.is_line(each.line, each.text) for each in lines)


def _model_call(source: SourceFile, forward: StatementPlace) -> libcst.Call | None:
    """The call in the forward's statement of the one name whose parameters the file asks for."""
    owners = [call.func.value for call in source.calls_of("parameters") if isinstance(call.func, libcst.Attribute)]
    asked = {owner.value for owner in owners if isinstance(owner, libcst.Name)}
    calls = [node for node in nodes_in(forward.statement) if isinstance(node, libcst.Call)]
    calls = [call for call in calls if isinstance(call.func, libcst.Name) and call.func.value in asked]
    return calls[0] if len(calls) == 1 else None


def _before_optimizer(
    source: SourceFile, edit: ModelEdit, model: str, forward: StatementPlace
) -> StatementPlace | None:
    """The statement that makes the optimizer of the model's parameters, if both names mean the same module."""
    site = edit.optimizer
    if site is None or Path(site.file).name != Path(edit.forward.file).name or not _is_current(source, site):
        return None
    place = source.statement_at(site.line)
    if place is None or f"{model}.parameters()" not in source.module.code_for_node(place.statement):
        return None
    scope, used = source.scope_of(place.statement), source.scope_of(forward.statement)
    if scope is None or used is None:
        return None
    bound, outermost = model in source.names_bound(scope), isinstance(scope, libcst.Module)
    if scope is used:
        return place if bound or outermost else None
    return place if bound and (outermost or model in parameters(used)) else None


def _before_loop(source: SourceFile, model: str, forward: StatementPlace) -> StatementPlace | None:
    """The training loop, where the model was made in the same function: not one that is handed over again and again."""
    scope = source.scope_of(forward.statement)
    if scope is None or model not in source.names_bound(scope):
        return None
    return source.outermost_loop(forward.statement)


def _is_saved(source: SourceFile, model: str) -> bool:
    for call in source.calls_of(*SAVING):
        if isinstance(call.func, libcst.Attribute):
            names = [call.func.value, *(each.value for each in call.args)]
            if any(isinstance(each, libcst.Name) and each.value == model for each in names):
                return True
    return False


# -- writing ----------------------------------------------------------------------------------------------------------


class _Rewriter(libcst.CSTTransformer):
    """Puts others in the place of some nodes. new: what makes them, by the node as it was."""

    def __init__(self, new: Mapping[libcst.CSTNode, Callable[[Any], Any]]) -> None:
        super().__init__()
        self._new = new

    def on_leave(
        self, original_node: libcst.CSTNodeT, updated_node: libcst.CSTNodeT
    ) -> libcst.CSTNodeT | libcst.RemovalSentinel | libcst.FlattenSentinel[libcst.CSTNodeT]:
        made: libcst.CSTNodeT | libcst.FlattenSentinel[libcst.CSTNodeT] = updated_node
        if original_node in self._new:
            made = self._new[original_node](updated_node)
        return made


def _rewritten(module: libcst.Module, new: Mapping[libcst.CSTNode, Callable[[Any], Any]]) -> libcst.Module | None:
    changed = module.visit(_Rewriter(new)) if new else None
    return changed if isinstance(changed, libcst.Module) else None


def _inserted(module: libcst.Module, new: Mapping[libcst.CSTNode, Sequence[str]]) -> libcst.Module | None:
    """new: statements as source, by the statement that they are put before."""

    def before(texts: Sequence[str], statement: Statement) -> libcst.FlattenSentinel[libcst.CSTNode]:
        """Blank lines stay above what is put there; comments stay with the statement."""
        added = [libcst.parse_statement(text, module.config_for_parsing) for text in texts]
        lines = statement.leading_lines
        blank = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
        added[0] = added[0].with_changes(leading_lines=lines[:blank])
        return libcst.FlattenSentinel([*added, statement.with_changes(leading_lines=lines[blank:])])

    return _rewritten(module, {statement: partial(before, texts) for statement, texts in new.items()})


EDITORS: Mapping[type, Callable[[libcst.Module, Any], libcst.Module | None]] = {
    CallEdit: with_keywords,
    CopyEdit: with_copies,
    SwitchEdit: with_switch,
    StatementEdit: with_statement,
    AutocastEdit: with_autocast,
    ModelEdit: with_model,
    LoopEdit: with_loop,
    DeferEdit: with_deferred,
    DecoratorEdit: with_decorator,
    ArgumentEdit: with_argument,
    ActivationEdit: with_activation,
}
"""Editors by type, of edits that are written into a source; a snippet is only shown, and variables are the shell's."""
