"""Edits of a parsed source file that keep its formatting.

One law: an edit that is not certainly right is not written (None). A call must be on its recorded line, once;
statements must equal the recorded ones; and names must mean the same at the edit as at their use."""

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
"""Most positional arguments of a call to be edited: the sixth of DataLoader is num_workers, and optimizers take theirs
by name only from about there on."""
MOST_POSITIONAL = {"zero_grad": 0, "torch.compile": 1}
"""Most positional arguments of calls whose next positional argument is the one to be set."""
TORCH = "torch"
NON_BLOCKING = "non_blocking"
SAVING = ("state_dict", "load_state_dict", "save", "save_pretrained")
"""Calls that show that parameter names go into files: a compiled wrapper adds a prefix to them."""
_NONE = libcst.SimpleWhitespace("")


def apply_edit(edit: SingleEdit, source: str) -> str | None:
    """Source with the edit applied; None where that is not safe."""
    try:
        module = libcst.parse_module(source)
    except libcst.ParserSyntaxError:
        return None
    changed = EDITORS[type(edit)](SourceFile(module), edit) if type(edit) in EDITORS else None
    return changed.code if changed is not None and changed.code != source else None


# -- calls ------------------------------------------------------------------------------------------------------------


def with_keywords(source: SourceFile, edit: CallEdit) -> libcst.Module | None:
    """Sets keywords of a call; None if a positional argument may already set one of them. Over a mapping (`**options`),
    the edit has the last word."""
    call = _call(source, edit)
    if call is None or [argument.star for argument in call.args if argument.star] not in ([], ["**"]):
        return None
    if sum(argument.keyword is None for argument in call.args) > MOST_POSITIONAL.get(edit.callee, USUAL_POSITIONAL):
        return None
    return _with_arguments(source.module, [call], edit.keywords)


def with_argument(source: SourceFile, edit: ArgumentEdit) -> libcst.Module | None:
    """Wraps one argument of a call in an expression. None if the call is in a loop, the file reads the argument's old
    value elsewhere, or the argument is neither the first nor given by name."""
    module, call = source.module, _call(source, CallEdit(edit.callee, (), edit.site))
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
    """True if a node is an attribute with one of these names that is used for more than its length. Options of a parsed
    command line do not count, though they may have such names."""
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


def with_copies(source: SourceFile, edit: CopyEdit) -> libcst.Module | None:
    """Adds non_blocking=True to the copies on a line. None if there is none, or one whose positional arguments may set
    it already: the one after the device may be a dtype or non_blocking."""
    calls = source.calls_of("to", "cuda", line=edit.site.line)
    calls = [call for call in calls if isinstance(call.func, libcst.Attribute)]
    if not calls or not _is_current(source, edit.site):
        return None
    for call in calls:
        names = [each.keyword.value for each in call.args if each.keyword]
        if any(each.star for each in call.args) or NON_BLOCKING in names or len(call.args) - len(names) > 1:
            return None
    return _with_arguments(source.module, calls, ((NON_BLOCKING, "True"),))


def with_switch(source: SourceFile, edit: SwitchEdit) -> libcst.Module | None:
    """Turns calls with a literal True off, or sets the value of the edit. None if the option may be set by an unknown
    value or in another way."""
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
    return _rewritten(source.module, {each: lambda _: value.deep_clone() for each in given})


def replaced_arguments(edit: CallEdit, source: str) -> list[str]:
    """Sentences on what the edit overrides in a source: arguments whose value is not a literal, and arguments that a
    mapping in the call (**options) may set."""
    module = libcst.parse_module(source)
    call = _call(SourceFile(module), edit)
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
    """Moves the edit of a value that comes from a command-line option (argparse) to that option's default, so that the
    option keeps its effect. Returns the rest of the edit, and the source with the new defaults. given: options on the
    job's own command line, where a default would have no effect."""
    module = libcst.parse_module(source)
    call = _call(SourceFile(module), edit)
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
    """Literal default of the option that a value reads ("arguments.workers"), if it is used only once and not in
    `given`; None for any other value."""
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


def _call(source: SourceFile, edit: CallEdit) -> libcst.Call | None:
    """Call that the edit names; None if there is none, or several."""
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
    """Arguments with keywords set. Existing keywords get the new value in place; others go over a mapping of the call
    (`**options`), else to the end, in the call's own style. A value that only unsets an option (False, None, 0) is not
    added to a call without it. None if a comment is in the way."""
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
    """Mapping with one option overridden: `{**options, "name": value}`."""
    whole = mapping if isinstance(mapping, libcst.Dict) else libcst.Dict([libcst.StarredDictElement(mapping)])
    elements = list(whole.elements)
    for number, each in enumerate(elements):
        key = each.key if isinstance(each, libcst.DictElement) else None
        if isinstance(key, libcst.SimpleString) and key.evaluated_value == name:
            elements[number] = each.with_changes(value=value)
            return whole.with_changes(elements=elements)
    return whole.with_changes(elements=[*elements, libcst.DictElement(libcst.SimpleString(f'"{name}"'), value)])


def _appended(arguments: list[libcst.Arg], name: str, value: libcst.BaseExpression) -> list[libcst.Arg] | None:
    """Arguments with one more. The new comma copies the layout of the last one; comments stay where they are. None if a
    comment is in the way."""
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
    """End of the line on which the space starts, if it has a comment."""
    first = space.first_line if isinstance(space, libcst.ParenthesizedWhitespace) else None
    return first if first is not None and first.comment is not None else None


# -- statements -------------------------------------------------------------------------------------------------------


def with_statement(source: SourceFile, edit: StatementEdit) -> libcst.Module | None:
    """Inserts a statement after the imports at the top. None if its module is not imported there under its own name, or
    if the file sets the same thing already, which would override it."""
    module, name = source.module, _set_by(edit.statement)
    if source.calls_of(name) or source.assigned(name):
        return None
    imports = [number for number, statement in enumerate(module.body) if _imports(statement) is not None]
    if not any(edit.module in (_imports(module.body[number]) or ()) for number in imports):
        return None
    added = libcst.parse_statement(edit.statement + module.default_newline)
    added = added.with_changes(leading_lines=[libcst.EmptyLine(indent=False)])
    return module.with_changes(body=[*module.body[: imports[-1] + 1], added, *module.body[imports[-1] + 1 :]])


def with_autocast(source: SourceFile, edit: AutocastEdit) -> libcst.Module | None:
    """Puts forward and loss under autocast. None if forward and backward do not follow each other in one block, or the
    file has autocast already."""
    torch = source.name_of(TORCH)
    if torch is None or "autocast" in source.module.code or not _is_current(source, edit.forward, edit.backward):
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
    return _rewritten(source.module, {forward.block: lambda block: block.with_changes(body=body)})


def with_model(source: SourceFile, edit: ModelEdit) -> libcst.Module | None:
    """Inserts a statement about the model before the construction of its optimizer, or else before the training loop.
    None if neither is found."""
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
    if place is None or not written or written in source.module.code:
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
    return _inserted(source.module, new)


def with_loop(source: SourceFile, edit: LoopEdit) -> libcst.Module | None:
    """Inserts statements before the training loop, and the import that they need among those at the top, in
    alphabetical order where these are sorted."""
    forward = source.statement_at(edit.forward.line)
    place = source.outermost_loop(forward.statement) if forward is not None else None
    if place is None or not _is_current(source, edit.forward) or edit.statements[-1] in source.module.code:
        return None
    needed = _import_of(source, edit.module)
    return _inserted(source.module, {place.statement: edit.statements, **needed}) if needed is not None else None


def _import_of(source: SourceFile, name: str) -> dict[libcst.CSTNode, Sequence[str]] | None:
    """Needed import, by the line that it goes before; empty if it exists or none is needed (""). None if the file has
    no plain import to put it next to."""
    if not name or source.name_of(name) == name:
        return {}
    plain = [line for line in source.module.body if _imported_first(line)]
    if not plain:
        return None
    return {next((line for line in plain if _imported_first(line) > name), plain[0]): [f"import {name}"]}


def with_deferred(source: SourceFile, edit: DeferEdit) -> libcst.Module | None:
    """Keeps a sum of device values on the device (see `deferred`); None if that is not safe."""
    new = deferred(source, edit) if _is_current(source, edit.site) else None
    return _rewritten(source.module, new) if new is not None else None


def with_decorator(source: SourceFile, edit: DecoratorEdit) -> libcst.Module | None:
    """Adds torch.compile to a function at its definition, at the top level or in a class. None if it has a decorator,
    is nested, or is a generator or async."""
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
    return _rewritten(source.module, {function: lambda each: each.with_changes(decorators=[added], leading_lines=())})


def with_activation(source: SourceFile, edit: ActivationEdit) -> libcst.Module | None:
    """Replaces the outermost formula of one variable in a statement that computes a known activation with torch's
    function for it."""
    torch, place = source.name_of(TORCH), source.statement_at(edit.site.line)
    if torch is None or place is None or not _is_current(source, edit.site):
        return None
    for node in nodes_in(place.statement):
        if isinstance(node, libcst.BinaryOperation | libcst.Call):
            found = activation_of(source.module.code_for_node(node))
            if found is not None:
                return _rewritten(source.module, {node: partial(_parsed, f"{torch}.nn.functional.{found.call}")})
    return None


def _set_by(statement: str) -> str:
    """Last names of the assignment target ("cudnn.benchmark") or of the call ("set_num_threads") in a statement."""
    (single,) = libcst.parse_module(statement).body
    target = single.body[0] if isinstance(single, libcst.SimpleStatementLine) else single
    if isinstance(target, libcst.Assign):
        return ".".join((get_full_name_for_node(target.targets[0].target) or "").split(".")[-2:])
    call = target.value if isinstance(target, libcst.Expr) else None
    return (get_full_name_for_node(call.func) or "").rpartition(".")[2] if isinstance(call, libcst.Call) else ""


def _imports(statement: libcst.CSTNode) -> list[str] | None:
    """Modules that an import line binds under their own names; None for a line without imports."""
    body = statement.body if isinstance(statement, libcst.SimpleStatementLine) else ()
    if not any(isinstance(each, libcst.Import | libcst.ImportFrom) for each in body):
        return None
    aliases = (alias for each in body if isinstance(each, libcst.Import) for alias in each.names)
    return [alias.evaluated_name.split(".")[0] for alias in aliases if alias.asname is None]


def _imported_first(statement: libcst.CSTNode) -> str:
    """First name of a plain import, "" for anything else."""
    first = statement.body[0] if isinstance(statement, libcst.SimpleStatementLine) else None
    return first.names[0].evaluated_name if isinstance(first, libcst.Import) else ""


def _clears_gradients(statement: Statement) -> bool:
    """True for a statement like `optimizer.zero_grad()` between loss and backward, which needs no autocast."""
    calls = [node for node in nodes_in(statement) if isinstance(node, libcst.Call)]
    return len(calls) == 1 and isinstance(calls[0].func, libcst.Attribute) and calls[0].func.attr.value == "zero_grad"


# -- where ------------------------------------------------------------------------------------------------------------


def _is_current(source: SourceFile, *lines: SourceLine) -> bool:
    return all(source.is_line(each.line, each.text) for each in lines)


def _model_call(source: SourceFile, forward: StatementPlace) -> libcst.Call | None:
    """Call in the forward's statement of the only name whose parameters the file reads; None if there is not exactly
    one."""
    owners = [call.func.value for call in source.calls_of("parameters") if isinstance(call.func, libcst.Attribute)]
    asked = {owner.value for owner in owners if isinstance(owner, libcst.Name)}
    calls = [node for node in nodes_in(forward.statement) if isinstance(node, libcst.Call)]
    calls = [call for call in calls if isinstance(call.func, libcst.Name) and call.func.value in asked]
    return calls[0] if len(calls) == 1 else None


def _before_optimizer(
    source: SourceFile, edit: ModelEdit, model: str, forward: StatementPlace
) -> StatementPlace | None:
    """Statement that makes the optimizer of the model's parameters, if the name means the same module there and at the
    forward."""
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
    """Training loop, if the model was made in the same function; a model passed in as a parameter may be passed in
    often."""
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
    """Transformer that replaces nodes. new: function that makes the replacement, by original node."""

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
    """Inserts statements. new: their source texts, by the statement that they go before."""

    def before(texts: Sequence[str], statement: Statement) -> libcst.FlattenSentinel[libcst.CSTNode]:
        """Puts blank lines above the inserted statements; comments stay with the original statement."""
        added = [libcst.parse_statement(text, module.config_for_parsing) for text in texts]
        lines = statement.leading_lines
        blank = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
        added[0] = added[0].with_changes(leading_lines=lines[:blank])
        return libcst.FlattenSentinel([*added, statement.with_changes(leading_lines=lines[blank:])])

    return _rewritten(module, {statement: partial(before, texts) for statement, texts in new.items()})


EDITORS: Mapping[type, Callable[[SourceFile, Any], libcst.Module | None]] = {
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
"""Editors by type of edit, for edits of a source. Snippets are only shown, and variables go into the shell."""
