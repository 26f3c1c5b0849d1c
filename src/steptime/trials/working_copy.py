"""A private copy of the job's working folder: what the job writes lands in it, what it only reads is linked.

One law: a file of the user's that the job has written to, or that lies in a folder that it has written to, is a copy
of its own. Source files are copies, too, so that a patch can be tried; all else is a symbolic link.

What is not contained: files that the job names by absolute paths, or relative to the resolved place of a library that
is installed from this folder; network services; anything outside of the working folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import UsageError

SOURCES = frozenset({".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh"})
"""Small files that decide what a job does: copied, so that imports find each other inside of the copy."""
SOURCE_BYTES = 4 << 20
"""A larger one is data."""
MOST_BYTES = 2 << 30
"""That are copied for an arm. A job that writes more into its folder is run with --in-place, or elsewhere."""
MOST_ENTRIES = 50_000
"""Files and folders that are looked at."""
LEVELS, MOST_SIBLINGS = 2, 2000
"""Folders above the job's whose other entries are linked, where they are not too many."""
DATA_FILES = 5000
"""A folder with more of them is a data set: its files are not looked at one by one."""
LINKED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".mypy_cache"})
"""Folders that are linked as a whole: a job does not train into them."""
OFFLINE = (
    ("WANDB_MODE", "offline"),
    ("WANDB_SILENT", "true"),
    ("COMET_OFFLINE_MODE", "1"),
    ("NEPTUNE_MODE", "offline"),
    ("CLEARML_OFFLINE_MODE", "1"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
)
"""What keeps loggers of experiments from reporting an arm as a run; the documented variables of each."""
NOT_CONTAINED = "files that the job names by absolute paths, and network services, are not contained"


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a job wrote under its working folder: files whose content, and folders whose list of entries, changed while
    it ran. Relative paths."""

    files: frozenset[Path]
    folders: frozenset[Path]


def find_outputs(folder: Path, begin_epoch_ns: int, end_epoch_ns: int, without: tuple[Path, ...] = ()) -> Outputs:
    """What changed in a folder between two instants, our own recordings (`without`) excepted.

    Raises UsageError for a folder with too many entries to look at.
    """
    files: set[Path] = set()
    folders: set[Path] = set()
    for path, entry in _walk(folder, without):
        if not begin_epoch_ns <= entry.st_mtime_ns <= end_epoch_ns:
            continue
        (folders if path.is_dir() else files).add(path.relative_to(folder))
    return Outputs(frozenset(files), frozenset(folders))


def make_copy(folder: Path, copy: Path, outputs: Outputs, without: tuple[Path, ...] = ()) -> Path:
    """Makes a folder below `copy`, a new one, that stands for `folder`; returns it. What lies beside `folder` and
    beside its parent is linked beside it, so that `../data` means what it meant.

    Raises UsageError where that would copy more than MOST_BYTES, and OSError.
    """
    copy.mkdir(parents=True)
    place = _surround(folder.absolute(), copy)
    left = [MOST_BYTES]
    _fill(folder, place, Path(), outputs, {path.absolute() for path in without}, left)
    return place


def write_private(copy: Path, path: Path, text: str) -> None:
    """Writes a source file of a copy, and nothing outside of it: a folder on the way that is a link to the user's own
    becomes a real one first, of copies of sources and links to all else. path: relative. Raises ValueError for one that
    leads out of the copy, and OSError."""
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} lies outside of the copy")
    folder = copy
    for part in path.parent.parts:
        folder = folder / part
        if folder.is_symlink():
            _unlink_folder(folder)
    place = folder / path.name
    place.unlink(missing_ok=True)  # it may be a link, too
    place.write_text(text, encoding="utf-8")


def _unlink_folder(link: Path) -> None:
    """A real folder in the place of a link to one."""
    original = _target(link)
    link.unlink()
    link.mkdir()
    for entry in original.iterdir():
        if entry.is_symlink():
            (link / entry.name).symlink_to(_target(entry))
        elif _is_source(entry):
            shutil.copy2(entry, link / entry.name)
        elif entry.name != "__pycache__":
            (link / entry.name).symlink_to(entry.absolute())


def _surround(folder: Path, copy: Path) -> Path:
    """Makes the place of the folder in the copy of its surroundings."""
    chain = [folder, *folder.parents[:LEVELS]]
    while len(chain) > 1 and _entries(chain[-1]) is None:
        chain.pop()
    place = copy
    for inner, outer in zip(chain[-2::-1], chain[:0:-1], strict=True):
        for name in _entries(outer) or ():
            if name != inner.name:
                (place / name).symlink_to(outer / name)
        place = place / inner.name
        place.mkdir()
    return place


def _entries(folder: Path) -> list[str] | None:
    """Names in a folder; None for one that may not be looked at, or holds too many to link."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_SIBLINGS + 1)]
    except OSError:
        return None
    return names if len(names) <= MOST_SIBLINGS else None


def offline_environment(copy: Path) -> tuple[tuple[str, str], ...]:
    """Variables for an arm: loggers stay offline and in the copy."""
    return (*OFFLINE, ("MLFLOW_TRACKING_URI", (copy / "mlruns").absolute().as_uri()), ("WANDB_DIR", str(copy)))


def touched(folder: Path, outputs: Outputs, since_epoch_ns: int) -> tuple[Path, ...]:
    """Outputs in the user's own folder that were written to since: what an arm did not keep to its copy."""
    found = []
    for path in sorted(outputs.files):
        try:
            changed = (folder / path).stat().st_mtime_ns >= since_epoch_ns
        except OSError:
            continue
        if changed:
            found.append(path)
    return tuple(found)


def _walk(folder: Path, without: tuple[Path, ...]) -> Iterator[tuple[Path, os.stat_result]]:
    """Files and folders below, links not followed."""
    left_out = {path.absolute() for path in without}
    seen = 0
    for root, names, files in os.walk(folder.absolute()):
        names[:] = [name for name in names if name not in LINKED and Path(root, name) not in left_out]
        names[:] = [name for name in names if not Path(root, name, "pyvenv.cfg").exists()]
        if len(files) > DATA_FILES:
            files = []
        seen += len(names) + len(files)
        if seen > MOST_ENTRIES:
            raise UsageError(
                "folder-too-large",
                f"{folder} holds more than {MOST_ENTRIES} files, too many to make arms a working copy: run from the "
                "folder of the job alone, or add --in-place to let arms write where the job does.",
            )
        for name in (*names, *files):
            path = Path(root, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # it went away


def _fill(source: Path, copy: Path, relative: Path, outputs: Outputs, without: set[Path], left: list[int]) -> None:
    for entry in sorted((source / relative).iterdir()):
        place, inside = copy / relative / entry.name, relative / entry.name
        if entry.absolute() in without or entry.name == "__pycache__":
            continue
        if entry.is_symlink():
            place.symlink_to(_target(entry))
        elif entry.is_dir():
            if entry.name in LINKED or not _is_private(entry, inside, outputs):
                place.symlink_to(entry.absolute())
            else:
                place.mkdir()
                _fill(source, copy, inside, outputs, without, left)
        elif entry.is_file() and (inside in outputs.files or relative in _written(outputs) or _is_source(entry)):
            _copy_file(entry, place, left)
        elif entry.is_file():
            place.symlink_to(entry.absolute())


def _written(outputs: Outputs) -> frozenset[Path]:
    """Folders in which every file is a copy: those that the job wrote to, the working folder itself excepted."""
    return frozenset((outputs.folders | {path.parent for path in outputs.files}) - {Path()})


def _target(link: Path) -> Path:
    return link.parent.absolute() / link.readlink()


def _is_private(folder: Path, inside: Path, outputs: Outputs) -> bool:
    """Whether a folder must be a real one in the copy: outputs or source files lie in it."""
    if any(inside == path or inside in path.parents for path in (*outputs.files, *outputs.folders)):
        return True
    with os.scandir(folder) as every:
        entries = list(itertools.islice(every, DATA_FILES))
    if any(entry.name.endswith(".py") for entry in entries):
        return True
    inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return any(Path(path, "__init__.py").exists() for path in inner)


def _is_source(path: Path) -> bool:
    return path.suffix in SOURCES and path.is_file() and path.stat().st_size <= SOURCE_BYTES


def _copy_file(source: Path, place: Path, left: list[int]) -> None:
    left[0] -= source.stat().st_size
    if left[0] < 0:
        raise UsageError(
            "copy-too-large",
            f"The job writes to files of more than {MOST_BYTES >> 30} GiB in its folder, which would be copied for "
            "each arm: clear away old checkpoints, or add --in-place to let arms write where the job does.",
        )
    shutil.copy2(source, place)
