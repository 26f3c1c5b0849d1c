"""A user's own changes of a job as variants: a diff, a revision of the repository, environment variables, a command.

`git` itself reads diffs and revisions. Nothing is checked out, and the user's files stay unchanged."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from steptime.advice.fix import Promise
from steptime.changes import Change
from steptime.errors import UsageError
from steptime.git import COMMIT, ask_git, filtered
from steptime.quantities import format_count
from steptime.trials.trial import BASELINE, Variant

Sources = tuple[tuple[str, str], ...]
OURS = "steptime"
PLAIN = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
"""Options of `git diff` for plain text: no external programs, no submodules."""


def from_diff(diff: Path, directory: Path, name: str) -> Variant:
    """Variant of the job with a unified diff applied. directory: the job's folder; the diff's paths are relative to it,
    or to the root of its repository. Raises UsageError if the diff cannot be parsed or does not apply."""
    if not diff.is_file():
        raise UsageError("judge-diff", f"No such file: {diff}. Expected a unified diff, as `git diff` writes it.")
    diff = diff.absolute()
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        scratch = Path(folder)  # no repository: git takes the paths as they are
        what = f"{diff.name} is not a unified diff, as `git diff` writes it"
        touched = _named(_git(scratch, "apply", "--numstat", "-z", str(diff), what=what, topmost=scratch.parent), diff)
        places = (directory, _root_of(directory) or directory)
        root = next((place for place in places if any((place / path).exists() for path in touched)), directory)
        for path in touched:
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            if (root / path).is_file():
                shutil.copyfile(root / path, scratch / path)
        what = f"{diff.name} does not apply to the files in {root}"
        _git(scratch, "apply", str(diff), what=what, topmost=scratch.parent)
        gone = next((path for path in touched if not (scratch / path).exists()), None)
        if gone is not None:
            reason = f"{diff} removes or renames {gone}, which --diff cannot do. Judge a commit instead: --ref."
            raise UsageError("judge-diff", reason)
        sources = tuple((os.path.relpath(root / path, directory), _text(scratch / path)) for path in touched)
    return Variant(
        name, label=diff.name, sources=sources, promise=Promise.SAME_CURVE, suspicion=_suspicion(sources, directory)
    )


def from_revision(revision: str, directory: Path, name: str) -> Variant:
    """Variant of the job with the files of a commit that differ from those in its folder. Files that the commit lacks
    stay as they are, and so do binary files, which the label counts. Raises UsageError for an unknown revision, and
    outside of a repository."""
    root = _root_of(directory)
    if root is None:
        raise UsageError("judge-revision", f"{directory} is not in a Git repository. Give --diff instead of --ref.")
    commit = _git(
        root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", what=f"git knows no commit {revision}"
    ).strip()
    if not COMMIT.fullmatch(commit):  # nothing that git would take for an option
        raise UsageError("judge-git", f"git knows no commit {revision}.")
    # Compared with the folder, so that "added" (left out by the filter) is what only the folder has.
    listed = _git(root, "diff", *PLAIN, "--no-renames", "--diff-filter=a", "--numstat", "-z", commit)
    rows = [row.split("\t", 2) for row in listed.split("\0") if row]
    stored = filtered(root, [path for _, _, path in rows]) if rows else frozenset()
    texts = [path for added, _, path in rows if added != "-" and path not in stored]
    binary = len(rows) - len(texts)
    sources = tuple(
        (os.path.relpath(root / path, directory), _git(root, "cat-file", "blob", f"{commit}:{path}")) for path in texts
    )
    label = f"{revision} (without {format_count(binary, 'binary file')})" if binary else revision
    return Variant(
        name, label=label, sources=sources, promise=Promise.SAME_CURVE, suspicion=_suspicion(sources, directory)
    )


def from_range(revisions: str, directory: Path, name: str) -> tuple[Variant | None, Variant]:
    """Pair (variant of the job at commit A, variant at commit B) for a range A..B; the first is None for a single
    revision."""
    first, dots, last = revisions.partition("..")
    if not dots:
        return None, from_revision(revisions, directory, name)
    before, after = (from_revision(each or "HEAD", directory, name) for each in (first, last))
    # What A changes and B does not have must be as B has it: both start from the same files.
    known = {path for path, _ in after.sources}
    unchanged = tuple((path, _text(directory / path)) for path, _ in before.sources if path not in known)
    after = replace(after, label=revisions, sources=(*after.sources, *unchanged))
    return Variant(BASELINE, label=first, sources=before.sources), after


def from_variables(pairs: Sequence[str]) -> Variant:
    """Variant of the job with environment variables set. Raises UsageError for a pair that is not KEY=VALUE."""
    split = [pair.partition("=") for pair in pairs]
    for pair, (key, sign, _) in zip(pairs, split, strict=True):
        if not key or not sign:
            raise UsageError("usage", f"--env takes KEY=VALUE, not {pair!r}. Example: --env OMP_NUM_THREADS=4")
    arguments = tuple((key, value) for key, _, value in split)
    return Variant(
        "env", (Change("environment", arguments=arguments),), label=" ".join(pairs), promise=Promise.SAME_CURVE
    )


def from_words(words: str, command: Sequence[str], name: str) -> Variant:
    """Variant of the job's command with further arguments."""
    return Variant(name, label=words, command=(*command, *_split(words, "--args")), promise=Promise.SAME_CURVE)


def from_command(words: str, name: str) -> Variant:
    """Variant that runs another command in the job's folder."""
    return Variant(name, label=words, command=_split(words, "--against"), promise=Promise.SAME_CURVE)


def _split(words: str, option: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(words))
    except ValueError as error:
        raise UsageError("usage", f"{option} {words!r} cannot be split into words: {error}.") from None
    if not found:
        raise UsageError(
            "usage",
            f"{option} is empty. Expected arguments as a shell would split them, such as {option} '--batch-size 64'.",
        )
    return found


def suspicion_of(texts: Iterable[tuple[str, str]]) -> str:
    """Sentence on signs of cheating in changed files; "" if there are none. texts: (before, after) pairs."""
    if any(after.lower().count(OURS) > before.lower().count(OURS) for before, after in texts):
        return f"Its source refers to {OURS}, the variables that measure it"
    return ""


def _suspicion(sources: Sources, directory: Path) -> str:
    pairs = ((directory / path, text) for path, text in sources if path.endswith(".py"))
    return suspicion_of((_text(path) if path.is_file() else "", text) for path, text in pairs)


def _git(folder: Path, *words: str, what: str = "", topmost: Path | None = None) -> str:
    """Output of a `git` command. Raises UsageError if it fails, or prints bytes that are not UTF-8."""
    try:
        done = ask_git(folder, *words, topmost=topmost)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError("judge-git", f"git could not be run: {error}.") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().split("\n")[0]
        message = message.removeprefix("error: ").partition(" (allow with")[0]  # git's option is none of ours
        raise UsageError("judge-git", f"{what or f'git {words[0]} refused'}{f': {message}' if message else ''}.")
    try:
        return done.stdout.decode()
    except UnicodeDecodeError:
        raise UsageError("judge-git", f"git {words[0]} lists a binary file, which a trial cannot change.") from None


def _named(listed: str, diff: Path) -> list[str]:
    """Paths that a diff touches, from the output of `git apply --numstat -z`. Raises UsageError for unsupported
    diffs."""
    rows = [row.split("\t") for row in listed.split("\0") if row]
    if not rows:
        raise UsageError("judge-diff", f"{diff} contains no change. Expected a unified diff, as `git diff` writes it.")
    for _, _, path in filter(lambda row: len(row) == 3 and row[2], rows):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UsageError("judge-diff", f"{diff} changes {path}, which is not a path inside a folder.")
    if any(len(row) != 3 or row[0] == "-" or not row[2] for row in rows):
        raise UsageError(
            "judge-diff",
            f"{diff} renames files, or changes a binary one, which --diff cannot do. Judge a commit instead: --ref.",
        )
    return [row[2] for row in rows]


def _root_of(directory: Path) -> Path | None:
    """Root of the repository around a folder; None outside of one."""
    try:
        return Path(_git(directory, "rev-parse", "--show-toplevel").rstrip("\n"))
    except UsageError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise UsageError("judge-diff", f"{path.name} is a binary file, which a trial cannot change.") from None
