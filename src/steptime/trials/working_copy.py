"""Private copy of the job's working folder, for systems that do not permit overlays.

One law: without a guard on the user's files, nothing in the copy leads to them: no symbolic link, no hard link. Under
Landlock, which permits reading through a link but no writing, large files and the folder's surroundings are linked. Not
contained are files that the job names by absolute paths, or relative to the resolved place of a library that is
installed from this folder."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import UsageError

SOURCES = frozenset({".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh"})
"""Suffixes of small files that decide what a job does: copied, so that imports find each other inside of the copy."""
SOURCE_BYTES = 4 << 20
"""Size limit of such a file; a larger one is data."""
MOST_BYTES = 2 << 30
"""Most bytes that are copied for a variant, without shared blocks."""
LARGE = 64 << 20
"""Size from which on a file is linked under Landlock, unless the job wrote it while it was recorded."""
CLONE = 0x40049409
"""FICLONE of linux/fs.h: makes a file that shares the blocks of another until either is written to."""
MOST_ENTRIES = 50_000
"""Most files and folders that are examined."""
LEVELS, MOST_SIBLINGS = 2, 2000
"""Number of folders above the job's whose other entries are linked, and the most entries of such a folder."""
DATA_FILES = 5000
"""Number of files from which on a folder is a data set: it is linked as a whole, without examining its files."""
LINKED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", ".tox", ".mypy_cache"})
"""Folders that a job does not write to: linked as a whole, and left out if links are not allowed."""
OFFLINE = (
    ("WANDB_MODE", "offline"),
    ("WANDB_SILENT", "true"),
    ("COMET_OFFLINE_MODE", "1"),
    ("NEPTUNE_MODE", "offline"),
    ("CLEARML_OFFLINE_MODE", "1"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
)
"""Environment variables that keep experiment loggers from reporting a variant as a run, from their documentation."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Paths in its working folder that a job changed while it ran, relative to that folder. files: files with changed
    content; folders: folders with a changed list of entries."""

    files: frozenset[Path]
    folders: frozenset[Path]


NO_OUTPUTS = Outputs(frozenset(), frozenset())


def find_outputs(folder: Path, start_epoch_ns: int, end_epoch_ns: int, without: tuple[Path, ...] = ()) -> Outputs:
    """Changes in a folder between two instants, without steptime's own recordings (`without`).

    Raises UsageError for a folder with too many entries to examine."""
    seen = _walk(folder, without)
    changed = [path for path, entry in seen if start_epoch_ns <= entry.st_mtime_ns <= end_epoch_ns]
    folders = frozenset(path.relative_to(folder) for path in changed if path.is_dir())
    return Outputs(frozenset(path.relative_to(folder) for path in changed) - folders, folders)


def make_copy(
    folder: Path, copy: Path, outputs: Outputs, without: tuple[Path, ...] = (), *, linking: bool = False
) -> Path:
    """Copies `folder` into the new folder `copy`; returns its place there. linking: link large files, and the siblings
    of `folder` and of its parent, so that `../data` keeps its meaning.

    Raises UsageError if it would copy more than MOST_BYTES, and OSError."""
    copy.mkdir(parents=True)
    place = _surround(folder.absolute(), copy, linking)
    _Filler(folder.absolute(), place, outputs, {path.absolute() for path in without}, linking).fill(Path())
    return place


def write_private(copy: Path, path: Path, text: str) -> None:
    """Writes a source file in a copy, and nothing outside of it. A folder on the way that is a link to the user's own
    becomes a real one first, with copies of sources and links to everything else. path: relative. Raises ValueError for
    one that leads out of the copy, and OSError."""
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is outside of the copy")
    folder = copy
    for part in path.parent.parts:
        folder = folder / part
        if folder.is_symlink():
            _unlink_folder(folder)
    place = folder / path.name
    place.unlink(missing_ok=True)  # it may be a link, too
    place.write_text(text, encoding="utf-8")


def _unlink_folder(link: Path) -> None:
    """Replaces a link to a folder by a real folder."""
    original = _target(link)
    link.unlink()
    link.mkdir()
    for entry in original.iterdir():
        place = link / entry.name
        if entry.is_symlink():
            place.symlink_to(_target(entry))
        elif entry.suffix in SOURCES and entry.is_file() and entry.stat().st_size <= SOURCE_BYTES:
            shutil.copy2(entry, place)
        elif entry.name != "__pycache__":
            place.symlink_to(entry.absolute())


def _surround(folder: Path, copy: Path, linking: bool) -> Path:
    """Makes the folder's place in a copy of its surroundings."""
    chain = [folder, *folder.parents[:LEVELS]]
    while len(chain) > 1 and _entries(chain[-1]) is None:
        chain.pop()
    place = copy
    for inner, outer in zip(chain[-2::-1], chain[:0:-1], strict=True):
        for name in (_entries(outer) or ()) if linking else ():
            if name != inner.name:
                (place / name).symlink_to(outer / name)
        place = place / inner.name
        place.mkdir()
    return place


def _entries(folder: Path) -> list[str] | None:
    """Names in a folder; None if it cannot be read or has too many entries to link."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_SIBLINGS + 1)]
    except OSError:
        return None
    return names if len(names) <= MOST_SIBLINGS else None


def offline_environment(copy: Path) -> tuple[tuple[str, str], ...]:
    """Environment variables that keep loggers offline, and their files in the copy."""
    return (*OFFLINE, ("MLFLOW_TRACKING_URI", (copy / "mlruns").absolute().as_uri()), ("WANDB_DIR", str(copy)))


def outputs_outside(command: Sequence[str], folder: Path, start_epoch_ns: int, end_epoch_ns: int) -> tuple[Path, ...]:
    """Paths outside of the folder that the command names and that changed between two instants."""
    inside = Path(os.path.realpath(folder))
    named = {Path(os.path.realpath(folder / word.rpartition("=")[2])) for word in command if os.sep in word}
    apart = [path for path in sorted(named) if not path.is_relative_to(inside) and not inside.is_relative_to(path)]
    return tuple(path for path in apart if _changed(path, start_epoch_ns, end_epoch_ns))


def _changed(path: Path, start: int, end: int) -> bool:
    """True if a file, or one of the first DATA_FILES entries below a folder, changed between two instants."""
    below = itertools.chain([path], (Path(root, name) for root, _, names in os.walk(path) for name in names))
    return any(
        os.path.lexists(each) and start <= each.lstat().st_mtime_ns <= end and "__pycache__" not in each.parts
        for each in itertools.islice(below, DATA_FILES)
    )


Tree = Mapping[Path, tuple[int, int, int]]


def tree_of(folder: Path, without: tuple[Path, ...]) -> Tree:
    """(inode, size, modification time in ns) of each entry in the user's folder, to detect changes. Raises UsageError
    as find_outputs does."""
    return {path: (found.st_ino, found.st_size, found.st_mtime_ns) for path, found in _walk(folder, without)}


def differences(before: Tree, after: Tree) -> tuple[Path, ...]:
    """Added, removed and changed entries, without folders whose content is listed itself."""
    found = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    return tuple(sorted(found - {path.parent for path in found}))


def _walk(folder: Path, without: tuple[Path, ...]) -> Iterator[tuple[Path, os.stat_result]]:
    """Files and folders below a folder with their status, links not followed."""
    left_out = {path.absolute() for path in without}
    seen = 0
    for root, names, files in os.walk(folder.absolute()):
        names[:] = [
            name for name in names if Path(root, name) not in left_out and not _is_environment(Path(root, name))
        ]
        if len(files) > DATA_FILES:
            files = []
        seen += len(names) + len(files)
        if seen > MOST_ENTRIES:
            raise UsageError(
                "folder-too-large",
                f"{folder} contains more than {MOST_ENTRIES} files, too many to copy for each variant. Run "
                "from a folder with the job alone, or allow user namespaces on this machine, which need no "
                "copy.",
            )
        for name in (*names, *files):
            path = Path(root, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # it went away


class _Filler:
    """Fills a copy. Raises UsageError if it would copy too much."""

    def __init__(self, source: Path, copy: Path, outputs: Outputs, without: set[Path], linking: bool) -> None:
        self._source, self._copy, self._without, self._linking = source, copy, without, linking
        self._files, self._written = outputs.files, (*outputs.files, *outputs.folders)
        self._left = MOST_BYTES

    def fill(self, relative: Path) -> None:
        """Fills a folder that exists in the copy. relative: its path in source and copy."""
        for entry in sorted((self._source / relative).iterdir()):
            place, inside = self._copy / relative / entry.name, relative / entry.name
            if entry.absolute() in self._without or entry.name == "__pycache__":
                continue
            if entry.is_symlink():
                self._link(entry, place)
            elif self._is_left(entry, inside):
                if self._linking:
                    place.symlink_to(entry)
            elif entry.is_dir():
                place.mkdir()
                self.fill(inside)
            elif entry.is_file():
                self._copy_file(entry, place)

    def _is_left(self, entry: Path, inside: Path) -> bool:
        """True if an entry is linked or left out: an environment, a large file, or a data set (a folder of many files
        into which the job wrote none)."""
        if not entry.is_dir():
            return self._linking and inside not in self._files and entry.lstat().st_size > LARGE
        if _is_environment(entry):
            return True
        if not self._linking or any(inside == path or inside in path.parents for path in self._written):
            return False
        below = (name for _, names, files in os.walk(entry) for name in (*names, *files))
        return sum(1 for _ in itertools.islice(below, DATA_FILES + 1)) > DATA_FILES

    def _link(self, entry: Path, place: Path) -> None:
        """Recreates a link of the user's: to the same place, or, inside of the folder, to its copy."""
        target = Path(os.path.normpath(_target(entry)))
        if target.is_relative_to(self._source):
            place.symlink_to(self._copy / target.relative_to(self._source))
        elif self._linking:
            place.symlink_to(_target(entry))
        elif target.is_file():
            self._copy_file(target, place)
        elif target.is_dir():
            raise _too_large(f"{entry} links to a folder outside the job's")

    def _copy_file(self, source: Path, place: Path) -> None:
        if clone(source, place):
            return
        self._left -= source.stat().st_size
        if self._left < 0:
            raise _too_large(f"{self._source} contains more than {MOST_BYTES >> 30} GiB to copy for each process")
        shutil.copy2(source, place)


def _is_environment(folder: Path) -> bool:
    return folder.name in LINKED or (folder / "pyvenv.cfg").exists()


def _too_large(what: str) -> UsageError:
    return UsageError(
        "copy-too-large",
        f"{what}. Allow user namespaces on this machine (no copy is needed then), move old checkpoints "
        "elsewhere, or add --uncontained: trial processes then write where the job does.",
    )


def clone(source: Path, place: Path) -> bool:
    """Clones a file by sharing its blocks; True on success. Raises OSError for a full disk."""
    with source.open("rb") as old, place.open("wb") as new:
        try:
            fcntl.ioctl(new.fileno(), CLONE, old.fileno())
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            return False
    shutil.copystat(source, place)
    return True


def _target(link: Path) -> Path:
    return link.parent.absolute() / link.readlink()
