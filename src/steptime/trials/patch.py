"""Patch of the user's own sources: edits in sequence, as a diff, and written to the files where that is safe.

An edit that cannot be written with certainty (`edits.py`) is a snippet for the user."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path

from steptime.advice.fix import (
    ActivationEdit,
    ArgumentEdit,
    CallEdit,
    CopyEdit,
    DecoratorEdit,
    DeferEdit,
    Edit,
    EnvironmentEdit,
    JointEdit,
    SingleEdit,
    Snippet,
    StatementEdit,
)
from steptime.errors import OutputError
from steptime.git import ask_git
from steptime.quantities import SourceLine
from steptime.trials.edits import apply_edit, replaced_arguments, through_options
from steptime.trials.working_copy import LEVELS

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of folders with installed packages, which are not the user's code."""


class MovedLines:
    """Map from lines of a file as recorded to lines of its edited text. Changes of indentation do not count, and lines
    replaced by as many others map one to one."""

    def __init__(self, recorded: str) -> None:
        self._now = _stripped(recorded)
        self._places = {number: number for number in range(len(self._now))}

    def follow(self, edited: str) -> None:
        """Updates the map after one more edit. One edit at a time keeps the diff unambiguous."""
        after = _stripped(edited)
        step: dict[int, int] = {}
        for _, start, end, first, last in difflib.SequenceMatcher(None, self._now, after, autojunk=False).get_opcodes():
            if end - start == last - first:
                step.update(zip(range(start, end), range(first, last), strict=True))
        self._places = {line: step[place] for line, place in self._places.items() if place in step}
        self._now = after

    def edit(self, edit: SingleEdit) -> SingleEdit | None:
        """Edit whose lines are moved to their current places; None if one of them is gone."""
        moved: dict[str, SourceLine] = {}
        for field in fields(edit):
            line = getattr(edit, field.name)
            if isinstance(line, SourceLine):
                place = self._places.get(line.line - 1)
                if place is None:
                    return None
                moved[field.name] = replace(line, line=place + 1, text=self._now[place] if line.text else "")
        return replace(edit, **moved)  # type: ignore[arg-type]


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


@dataclass(frozen=True, slots=True)
class Patch:
    """Patch of a job. files: (path relative to the job's folder, old text, new text). folder: the job's. environment:
    variables to set with it. snippets: edits that could not be written, as text with file and line. replaced: texts on
    non-literal arguments that the patch overrides, such as a command-line option that loses its effect."""

    folder: Path
    files: tuple[tuple[Path, str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    snippets: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    @property
    def base(self) -> Path:
        """Folder from which the diff is applied: the root of the repository around the files and the job's folder, or
        their common folder. `git apply` ignores files outside of it."""
        inner = os.path.commonpath([self.folder, *(place_of(self.folder, path).parent for path, _, _ in self.files)])
        common = Path(inner)
        return next((each for each in (common, *common.parents) if (each / ".git").exists()), common)

    @property
    def diff(self) -> str:
        """Unified diff, for `git apply` in `base`."""
        base = self.base
        named = ((place_of(self.folder, path).relative_to(base), old, new) for path, old, new in self.files)
        return "".join(unified_diff(path, old, new) for path, old, new in named)

    def apply_command(self, file: Path) -> str:
        """Command that applies the diff in `file`, from any working folder."""
        return shlex.join(["git", "-C", str(self.base), "apply", str(file.absolute())])


def unified_diff(path: Path, old: str, new: str) -> str:
    """Unified diff of one file with git's names; "" for equal texts. Only a line feed ends a line, as in git."""
    before, after = ([line for line in re.split(r"(?<=\n)", text) if line] for text in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{path.as_posix()}", f"b/{path.as_posix()}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class Drafts:
    """Edited texts of sources; nothing is written to disk. script: path of the started file; options: the job's own
    options."""

    def __init__(self, folder: Path, script: Path | None, options: frozenset[str]) -> None:
        self._folder, self._script, self._options = folder, script, options
        self._texts: dict[Path, str] = {}
        self._moved: dict[Path, MovedLines] = {}
        self.replaced: list[str] = []

    def write(self, parts: Sequence[SingleEdit]) -> bool:
        """Applies edits that belong together; returns True if all could be applied, else undoes them."""
        before = dict(self._texts), {path: copy(each) for path, each in self._moved.items()}, list(self.replaced)
        if all(map(self._write_one, parts)):
            return True
        self._texts, self._moved, self.replaced = before
        return False

    def _write_one(self, edit: SingleEdit) -> bool:
        path = self._file(edit)
        if path is None:
            return False
        if path not in self._texts and (recorded := _read(self._folder / path)) is not None:
            self._texts[path], self._moved[path] = recorded, MovedLines(recorded)
        placed = self._moved[path].edit(edit) if path in self._moved else None
        if placed is None or (new := apply_edit(placed, self._texts[path])) is None:
            return False
        if isinstance(placed, CallEdit):
            placed, text = through_options(placed, self._texts[path], self._options)
            new = apply_edit(placed, text) or text
            self.replaced += (f"{path}: {each}" for each in replaced_arguments(placed, text))
        self._texts[path] = new
        self._moved[path].follow(new)
        return True

    def _file(self, edit: SingleEdit) -> Path | None:
        """File to edit, relative to the job's folder; None for a file that is not the user's, or that no trial can run.
        Outside of the folder, only the script qualifies, if the command names it by a relative path."""
        folder, script, site = self._folder, self._script, _site(edit)
        started = place_of(folder, script) if script is not None else None
        place = place_of(folder, Path(site.file)) if site is not None else started
        if place is None or isinstance(edit, Snippet) or INSTALLED.intersection(place.parts):
            return None  # a framework's own loop, in an environment that is in the job's folder
        if place.is_relative_to(folder):
            return place.relative_to(folder)
        if script is None or script.is_absolute() or place != started:
            return None
        within_reach = any(place.is_relative_to(outer) for outer in folder.parents[:LEVELS])
        return Path(os.path.relpath(place, folder)) if within_reach else None

    def files(self) -> tuple[tuple[Path, str, str], ...]:
        """(path, old text, new text) of the changed files."""
        found = ((path, _read(self._folder / path) or "", text) for path, text in sorted(self._texts.items()))
        return tuple(each for each in found if each[1] != each[2])


def make_patch(edits: Sequence[Edit], folder: Path, script: Path | None, command: Sequence[str] = ()) -> Patch:
    """Applies edits to the sources in `folder` (the job's working folder), without writing files. script: the started
    file, where statements go; None if unknown. command: the job's, whose options stay in force."""
    drafts = Drafts(folder, script, frozenset(word.partition("=")[0] for word in command if word.startswith("-")))
    environment: list[tuple[str, str]] = []
    snippets: list[str] = []
    for edit in edits:
        if isinstance(edit, EnvironmentEdit):
            environment += edit.variables
        elif not drafts.write(edit.parts if isinstance(edit, JointEdit) else (edit,)):
            snippets.append(described(edit))
    return Patch(folder, drafts.files(), tuple(environment), tuple(snippets), tuple(drafts.replaced))


def unwritten(patch: Patch, edits: Sequence[Edit]) -> Patch:
    """Patch without changes of files, whose edits are snippets only, for a patch that failed its own run."""
    return Patch(patch.folder, snippets=tuple(map(described, edits)))


def _site(edit: SingleEdit) -> SourceLine | None:
    """Line that an edit is at: of the forward, if it has one."""
    site: SourceLine | None = getattr(edit, "forward", getattr(edit, "site", None))
    return site


def described(edit: Edit) -> str:
    """Instruction for the user, with file and line if known."""
    if isinstance(edit, JointEdit):
        return described(edit.example)
    if isinstance(edit, CallEdit):
        arguments = ", ".join(f"{name}={value}" for name, value in edit.keywords)
        text = f"{edit.callee}(…, {arguments})"
    elif isinstance(edit, ArgumentEdit):
        text = f"{edit.callee}({edit.plain.format(value=edit.argument)}, …)"
    elif isinstance(edit, EnvironmentEdit):
        text = " ".join(f"{name}={value}" for name, value in edit.variables)
    elif isinstance(edit, CopyEdit):
        text = "non_blocking=True"
    elif isinstance(edit, DecoratorEdit):
        text = f"@torch.compile before {edit.function}"
    elif isinstance(edit, ActivationEdit):
        text = "the formula as one function of torch.nn.functional"
    elif isinstance(edit, DeferEdit):
        text = "+= ….detach(), read behind the loop"
    elif isinstance(edit, Snippet):
        text = edit.text
    else:
        text = edit.statement if isinstance(edit, StatementEdit) else edit.example
    site = _site(edit)
    text = f"\n{text}" if "\n" in text else f" {text}"
    return f"{site.file}:{site.line}:{text}" if site is not None else text.lstrip()


def place_of(folder: Path, path: Path) -> Path:
    """Absolute place of a path in a folder, without `..`. A link to a file is not resolved, because the diff uses its
    name."""
    whole = folder / path
    return whole.parent.resolve() / whole.name if ".." in path.parts else whole


def _read(path: Path) -> str | None:
    """Text of a file with its original line ends; None if it is not UTF-8 or cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def write_patch(patch: Patch) -> tuple[Path, ...]:
    """Writes the patch's files, and returns their paths.

    Raises OutputError, before anything is written, for a file with uncommitted changes or one that has changed since it
    was read; and for one that cannot be written."""
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
            f"{path} cannot be written ({error.strerror}). Restore it with git checkout; the patch is in patch.diff.",
        ) from None
    return tuple(path for path, _, _ in files)


def _check(path: Path, old: str) -> None:
    if _read(path) != old:
        raise OutputError(
            "patch-outdated",
            f"{path} changed after the patch was made. Run the trial again, or apply patch.diff by hand.",
        )
    if is_dirty(path):
        raise OutputError(
            "patch-dirty",
            f"{path} has uncommitted changes, or is unknown to git. Commit it first, to keep the patch apart "
            "from your own work, or apply patch.diff by hand.",
        )


def is_dirty(path: Path) -> bool:
    """True if the file has uncommitted changes or is unknown to git, so that git could not restore it."""
    if path.is_symlink():  # git knows where it leads, and not what is there
        return True
    try:
        reported = ask_git(path.parent, "status", "--porcelain", "--ignored", "--", path.name)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return reported.returncode != 0 or bool(reported.stdout.strip())
