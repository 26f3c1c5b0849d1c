"""Edits of the user's own source, with its formatting kept: what was proven by a change is written where it belongs.

One law: only what is certainly right is written: the call must be found at its recorded line, and nowhere else on it.
Everything else is a snippet for the user.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

import libcst

from steptime.advice.fix import (
    AutocastEdit,
    CallEdit,
    CopyEdit,
    Edit,
    EnvironmentEdit,
    JointEdit,
    LoopEdit,
    ModelEdit,
    SingleEdit,
    Snippet,
    StatementEdit,
    SwitchEdit,
)
from steptime.errors import OutputError
from steptime.quantities import SourceLine
from steptime.trials.source import SourceFile, dotted
from steptime.trials.training_edits import with_autocast, with_copies, with_loop, with_model, with_switch
from steptime.trials.working_copy import LEVELS


class MovedLines:
    """From the lines of a file as it was recorded to those of its edited text. Indentation is no difference, and lines
    that were replaced by as many others are the same ones."""

    def __init__(self, recorded: str) -> None:
        self._now = _stripped(recorded)
        self._places = {number: number for number in range(len(self._now))}

    def follow(self, edited: str) -> None:
        """One more edit has been made: step by step, what moved where is never in doubt."""
        after = _stripped(edited)
        step: dict[int, int] = {}
        for _, begin, end, first, last in SequenceMatcher(None, self._now, after, autojunk=False).get_opcodes():
            if end - begin == last - first:
                step.update(zip(range(begin, end), range(first, last), strict=True))
        self._places = {line: step[place] for line, place in self._places.items() if place in step}
        self._now = after

    def edit(self, edit: SingleEdit) -> SingleEdit | None:
        """The edit with its lines as they are now; None where one is gone."""
        if isinstance(edit, CallEdit | CopyEdit):
            return self._with(edit, site=edit.site)
        if isinstance(edit, AutocastEdit):
            return self._with(edit, forward=edit.forward, backward=edit.backward)
        if isinstance(edit, ModelEdit):
            return self._with(edit, forward=edit.forward, optimizer=edit.optimizer)
        return self._with(edit, forward=edit.forward) if isinstance(edit, LoopEdit) else edit

    def _with(self, edit: _Lined, **lines: SourceLine | None) -> _Lined | None:
        moved: dict[str, Any] = {name: self._line(line) for name, line in lines.items() if line is not None}
        return None if None in moved.values() else replace(edit, **moved)

    def _line(self, line: SourceLine) -> SourceLine | None:
        place = self._places.get(line.line - 1)
        if place is None:
            return None
        return replace(line, line=place + 1, text=self._now[place] if line.text else "")


_Lined = TypeVar("_Lined", CallEdit, CopyEdit, CallEdit | CopyEdit, AutocastEdit, ModelEdit, LoopEdit)


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


USUAL_POSITIONAL = 5
"""Arguments without a name: the sixth of DataLoader is num_workers, optimisers take theirs by name only from about
there on."""
MOST_POSITIONAL = {"zero_grad": 0, "torch.compile": 1}
"""Of calls whose next argument is the one to be set."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders whose files are not the user's."""
_NONE = libcst.SimpleWhitespace("")


@dataclass(frozen=True, slots=True)
class Patch:
    """files: (path relative to the job's folder, old text, new text). folder: the job's. environment: variables that go
    with it. snippets: what could not be written, in words with file and line. replaced: arguments that were not plain
    values and are now, likewise: an option of the command line that has no effect there any more."""

    folder: Path
    files: tuple[tuple[Path, str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    snippets: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    @property
    def base(self) -> Path:
        """The folder that the diff is applied from: the root of the repository around the files and the job's folder,
        or the folder that they have in common. `git apply` takes no file outside of it."""
        inner = os.path.commonpath([self.folder, *(place_of(self.folder, path).parent for path, _, _ in self.files)])
        common = Path(inner)
        return next((each for each in (common, *common.parents) if (each / ".git").exists()), common)

    @property
    def diff(self) -> str:
        """Unified, as `git apply` takes it from `base`."""
        base = self.base
        named = ((place_of(self.folder, path).relative_to(base), old, new) for path, old, new in self.files)
        return "".join(unified_diff(path, old, new) for path, old, new in named)

    def apply_command(self, file: Path) -> str:
        """What applies the diff that was written to a file, from whatever folder it is given."""
        return shlex.join(["git", "-C", str(self.base), "apply", str(file.absolute())])


class Drafts:
    """Sources as edits make them, one after the other. Files are read, none is written."""

    def __init__(self, folder: Path, script: Path | None) -> None:
        self._folder, self._script = folder, script
        self._texts: dict[Path, str] = {}
        self._moved: dict[Path, MovedLines] = {}
        self.replaced: list[str] = []

    def write(self, parts: Sequence[SingleEdit]) -> bool:
        """Makes edits that belong together; whether all of them could be made. Else none is."""
        before = dict(self._texts), {path: copy(each) for path, each in self._moved.items()}, list(self.replaced)
        if all(map(self._write_one, parts)):
            return True
        self._texts, self._moved, self.replaced = before
        return False

    def _write_one(self, edit: SingleEdit) -> bool:
        path = _file(edit, self._folder, self._script)
        if path is None:
            return False
        if path not in self._texts and (recorded := _read(self._folder / path)) is not None:
            self._texts[path], self._moved[path] = recorded, MovedLines(recorded)
        placed = self._moved[path].edit(edit) if path in self._moved else None
        new = apply_edit(placed, self._texts[path]) if placed is not None else None
        if new is None:
            return False
        if isinstance(placed, CallEdit):
            self.replaced += (f"{path}: {each}" for each in _replaced(placed, self._texts[path]))
        self._texts[path] = new
        self._moved[path].follow(new)
        return True

    def files(self) -> tuple[tuple[Path, str, str], ...]:
        """(path, old text, new text) of those that differ."""
        found = ((path, _read(self._folder / path) or "", text) for path, text in sorted(self._texts.items()))
        return tuple(each for each in found if each[1] != each[2])


def make_patch(edits: Sequence[Edit], folder: Path, script: Path | None) -> Patch:
    """Writes edits into the sources in `folder` (the job's working folder). script: the file that was started, where
    statements go; None where it is not known. Reads files, writes none."""
    drafts = Drafts(folder, script)
    environment: list[tuple[str, str]] = []
    snippets: list[str] = []
    for edit in edits:
        if isinstance(edit, EnvironmentEdit):
            environment += edit.variables
        elif not drafts.write(edit.parts if isinstance(edit, JointEdit) else (edit,)):
            snippets.append(described(edit))
    return Patch(folder, drafts.files(), tuple(environment), tuple(snippets), tuple(drafts.replaced))


def unwritten(patch: Patch, edits: Sequence[Edit]) -> Patch:
    """A patch that did not stand its own run: its edits in words, and nothing to apply."""
    return Patch(patch.folder, snippets=tuple(map(described, edits)))


def apply_edit(edit: SingleEdit, source: str) -> str | None:
    """The source with the edit in it; None where that cannot be written safely."""
    try:
        module = libcst.parse_module(source)
    except libcst.ParserSyntaxError:
        return None
    changed = _changed(module, edit)
    if changed is None or changed.code == source:
        return None
    return changed.code


def _changed(module: libcst.Module, edit: SingleEdit) -> libcst.Module | None:
    if isinstance(edit, CallEdit):
        return _with_keywords(module, edit)
    if isinstance(edit, StatementEdit):
        return _with_statement(module, edit)
    if isinstance(edit, CopyEdit):
        return with_copies(module, edit)
    if isinstance(edit, SwitchEdit):
        return with_switch(module, edit)
    if isinstance(edit, AutocastEdit):
        return with_autocast(module, edit)
    if isinstance(edit, ModelEdit):
        return with_model(module, edit)
    return with_loop(module, edit) if isinstance(edit, LoopEdit) else None


def described(edit: Edit) -> str:
    """What is to be written, in words, with file and line where they are known."""
    if isinstance(edit, JointEdit):
        return described(edit.example)
    if isinstance(edit, Snippet):
        return f"{_told(edit.site)}{edit.text}"
    if isinstance(edit, CopyEdit):
        return f"{_told(edit.site)}non_blocking=True"
    if isinstance(edit, CallEdit):
        arguments = ", ".join(f"{name}={value}" for name, value in edit.keywords)
        return f"{_told(edit.site)}{edit.callee}(…, {arguments})"
    if isinstance(edit, AutocastEdit | ModelEdit | LoopEdit):
        return f"{_told(edit.forward)}{edit.example}"
    if isinstance(edit, SwitchEdit):
        return edit.example
    if isinstance(edit, StatementEdit):
        return edit.statement
    return " ".join(f"{name}={value}" for name, value in edit.variables)


def _told(site: SourceLine | None) -> str:
    return f"{site.file}:{site.line}: " if site is not None else ""


def unified_diff(path: Path, old: str, new: str) -> str:
    """Of one file, with the names that git gives; "" where they are equal."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{path.as_posix()}", f"b/{path.as_posix()}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """As git has them: only a line feed ends one, not the form feed that str.splitlines takes for an end, too."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _file(edit: SingleEdit, folder: Path, script: Path | None) -> Path | None:
    """The file to edit, relative to the job's folder; None for what is not the user's, or cannot be run in a trial:
    outside of the folder that is the script alone, where the command names it relative to the folder."""
    if isinstance(edit, Snippet):
        return None
    site = edit.site if isinstance(edit, CallEdit | CopyEdit) else None
    site = edit.forward if isinstance(edit, AutocastEdit | ModelEdit | LoopEdit) else site
    started = place_of(folder, script) if script is not None else None
    place = place_of(folder, Path(site.file)) if site is not None else started
    if place is None or INSTALLED.intersection(place.parts):
        return None  # a framework's own loop, in an environment that lies in the job's folder
    if place.is_relative_to(folder):
        return place.relative_to(folder)
    if script is None or script.is_absolute() or place != started:
        return None
    within_reach = any(place.is_relative_to(outer) for outer in folder.parents[:LEVELS])
    return Path(os.path.relpath(place, folder)) if within_reach else None


def place_of(folder: Path, path: Path) -> Path:
    """Where a path that was given in a folder leads, without `..`. A link to a file is not followed: it is the name
    that a diff has."""
    whole = folder / path
    return whole.parent.resolve() / whole.name if ".." in path.parts else whole


def _read(path: Path) -> str | None:
    """The text with its line ends as they are; None for what is no text of ours to edit."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


# -- calls ------------------------------------------------------------------------------------------------------------


def _call(module: libcst.Module, edit: CallEdit) -> libcst.Call | None:
    """The one that is meant; None where there is none, or several."""

    def is_meant(name: str) -> bool:
        return f".{name}".endswith(f".{edit.callee}")

    source = SourceFile(module)
    found = source.calls(is_meant, edit.site.line if edit.site is not None else None)
    last = edit.callee.rpartition(".")[2]
    alike = found if edit.site is not None else source.uses(lambda name: name.rpartition(".")[2] == last)
    return found[0] if len(found) == 1 and not {*map(id, alike)} - {id(found[0])} else None


def _replaced(edit: CallEdit, source: str) -> list[str]:
    """What the edit takes out of a source that is more than a plain value, in words."""
    module = libcst.parse_module(source)
    call = _call(module, edit)
    given = {each.keyword.value: each.value for each in call.args if each.keyword} if call is not None else {}
    return [
        f"{name}={module.code_for_node(given[name])} is {value} now"
        for name, value in edit.keywords
        if name in given and not _is_plain(given[name])
    ]


def _is_plain(value: libcst.BaseExpression) -> bool:
    if isinstance(value, libcst.Name):
        return value.value in ("True", "False", "None")
    return isinstance(value, libcst.Integer | libcst.Float | libcst.SimpleString)


def _with_keywords(module: libcst.Module, edit: CallEdit) -> libcst.Module | None:
    call = _call(module, edit)
    if call is None:
        return None
    positional = sum(argument.keyword is None for argument in call.args)
    if positional > MOST_POSITIONAL.get(edit.callee, USUAL_POSITIONAL) or any(argument.star for argument in call.args):
        return None  # what is given without a name may be what is to be set
    changed = _call_with(call, edit.keywords)
    replaced = module.deep_replace(call, changed) if changed is not None else None
    return replaced if isinstance(replaced, libcst.Module) else None


def _call_with(call: libcst.Call, keywords: Sequence[tuple[str, str]]) -> libcst.Call | None:
    """Existing keywords get the new value in their place; others are added at the end, in the call's own style. A value
    that only takes an option back (False, None, 0) is not added where nothing was. None where a comment is in the
    way."""
    arguments: list[libcst.Arg] | None = list(call.args)
    for name, value in keywords:
        if arguments is None:
            return None
        expression = libcst.parse_expression(value)
        places = [number for number, each in enumerate(arguments) if each.keyword and each.keyword.value == name]
        if places:
            arguments[places[0]] = arguments[places[0]].with_changes(value=expression)
        elif value not in ("False", "None", "0"):
            arguments = _appended(arguments, name, expression)
    return call.with_changes(args=arguments) if arguments is not None else None


def _appended(arguments: list[libcst.Arg], name: str, value: libcst.BaseExpression) -> list[libcst.Arg] | None:
    """The arguments with one more. The comma between the last two is the model of the new one; comments stay where
    they are."""
    new = libcst.Arg(value, libcst.Name(name), equal=libcst.AssignEqual(_NONE, _NONE))
    if not arguments:
        return [new]
    last = arguments[-1]
    trailing = last.comma if isinstance(last.comma, libcst.Comma) else None
    comment = _first_line(trailing)
    comma = _model(arguments[:-1])
    if comment is not None and comment.comment is not None:
        if not isinstance(comma.whitespace_after, libcst.ParenthesizedWhitespace):
            return None
        comma = comma.with_changes(whitespace_after=comma.whitespace_after.with_changes(first_line=comment))
    if trailing is not None:
        new = new.with_changes(comma=_without_comment(trailing))
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        aside = _first_line_of(last.whitespace_after_arg)
        if aside is not None and aside.comment is not None:
            return None
        last = last.with_changes(whitespace_after_arg=_NONE)
    return [*arguments[:-1], last.with_changes(comma=comma), new]


def _model(arguments: Sequence[libcst.Arg]) -> libcst.Comma:
    """The comma behind the last of them, without a comment; ", " where there is none."""
    found = arguments[-1].comma if arguments else None
    if isinstance(found, libcst.Comma):
        return _without_comment(found)
    return libcst.Comma(whitespace_after=libcst.SimpleWhitespace(" "))


def _without_comment(comma: libcst.Comma) -> libcst.Comma:
    space = comma.whitespace_after
    if not isinstance(space, libcst.ParenthesizedWhitespace):
        return comma
    first = space.first_line.with_changes(comment=None, whitespace=_NONE)
    return comma.with_changes(whitespace_after=space.with_changes(first_line=first, empty_lines=[]))


def _first_line(comma: libcst.Comma | None) -> libcst.TrailingWhitespace | None:
    return _first_line_of(comma.whitespace_after) if comma is not None else None


def _first_line_of(space: libcst.BaseParenthesizableWhitespace) -> libcst.TrailingWhitespace | None:
    return space.first_line if isinstance(space, libcst.ParenthesizedWhitespace) else None


# -- statements -------------------------------------------------------------------------------------------------------


def _with_statement(module: libcst.Module, edit: StatementEdit) -> libcst.Module | None:
    """The statement behind the imports at the top; None where the module that it needs is not imported there under its
    own name, or the file sets the same thing already, which would have the last word."""
    if SourceFile(module).sets(_set_by(edit.statement)):
        return None
    last, imported = -1, False
    for number, statement in enumerate(module.body):
        if not _is_import(statement):
            continue
        last = number
        imported = imported or _imports(statement, edit.module)
    if not imported:
        return None
    added = libcst.parse_statement(edit.statement + module.default_newline)
    blank = libcst.EmptyLine(indent=False)
    added = added.with_changes(leading_lines=[blank])
    return module.with_changes(body=[*module.body[: last + 1], added, *module.body[last + 1 :]])


def _set_by(statement: str) -> str:
    """The last names of what a statement assigns to ("cudnn.benchmark"), or calls ("set_num_threads")."""
    (single,) = libcst.parse_module(statement).body
    target = single.body[0] if isinstance(single, libcst.SimpleStatementLine) else single
    if isinstance(target, libcst.Assign):
        return ".".join(dotted(target.targets[0].target).split(".")[-2:])
    call = target.value if isinstance(target, libcst.Expr) else None
    return dotted(call.func).rpartition(".")[2] if isinstance(call, libcst.Call) else ""


def _is_import(statement: libcst.CSTNode) -> bool:
    return isinstance(statement, libcst.SimpleStatementLine) and any(
        isinstance(each, libcst.Import | libcst.ImportFrom) for each in statement.body
    )


def _imports(statement: libcst.CSTNode, name: str) -> bool:
    """Whether it binds the module under its own name."""
    if not isinstance(statement, libcst.SimpleStatementLine):
        return False
    aliases = (alias for each in statement.body if isinstance(each, libcst.Import) for alias in each.names)
    return any(alias.asname is None and alias.evaluated_name.split(".")[0] == name for alias in aliases)


def write_patch(patch: Patch) -> tuple[Path, ...]:
    """Writes the patch's files; returns their paths. Refuses all of it when one is dirty.

    Raises OutputError for a file that has changes which git does not know, that has changed since it was read, or that
    cannot be written.
    """
    files = [(place_of(patch.folder, path), old, new) for path, old, new in patch.files]
    for path, old, _ in files:
        _check(path, old)
    try:
        for path, _, new in files:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(new)
    except OSError as error:
        raise OutputError(
            "output-unwritable",
            f"{path} cannot be written ({error.strerror}): git checkout brings it back, and patch.diff holds the "
            "patch.",
        ) from None
    return tuple(path for path, _, _ in files)


def _check(path: Path, old: str) -> None:
    now: str | None = None
    with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8", newline="") as file:
        now = file.read()
    if now != old:
        raise OutputError(
            "patch-outdated", f"{path} has changed since the patch was made: try again, or apply patch.diff by hand."
        )
    if is_dirty(path):
        raise OutputError(
            "patch-dirty",
            f"{path} has changes that are not committed, or is unknown to git: commit it first, so that the patch can "
            "be told from your own work, or apply patch.diff by hand.",
        )


def is_dirty(path: Path) -> bool:
    """Whether git knows of changes in the file, or does not know the file: then it could not be brought back."""
    if path.is_symlink():  # git knows where it leads, and not what is there
        return True
    command = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored", "--", path.name]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return told.returncode != 0 or bool(told.stdout.strip())
