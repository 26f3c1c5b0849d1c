"""Containment of a trial's processes, so that the user's files stay as they are: overlays, else a copy and Landlock,
else a copy.

One law: what the system can be made to prevent is prevented; what it cannot is said before anything is started, and
takes --uncontained.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from steptime.errors import UsageError
from steptime.launcher import contain
from steptime.launcher.variant import OPEN, VariantPlace
from steptime.launcher.watchdog import Janitor, OwnFolder, clear
from steptime.trials.names import own_folder
from steptime.trials.working_copy import LINKED, NO_OUTPUTS, Outputs, make_copy, offline_environment, write_private

PATIENCE = 30.0
"""Seconds in which a system must have shown whether it permits overlays."""
WORKSPACES, CACHES = "copies", "caches"
WRITABLE = ("/dev", "/proc", "/run")
"""Paths outside its own that a process held by Landlock may write to: devices and shared memory, itself, sockets."""
USERS_CACHES = ("~/.cache", "~/.triton", "~/.nv")
REMOTE = re.compile(
    r"\b(postgres(ql)?|mysql|mariadb|mssql|oracle|mongodb|rediss?|s3[an]?|gc?s|az|abfss?|wasbs?|adl|hdfs|viewfs|oss|cosn?|obs)"
    r"(\+\w+)?://"
)
"""Data bases and stores of objects on other machines."""
SAYS = "network services are not contained"
MOST_FOLDERS = 5000
"""Below the job's that are looked at."""
MOST_NAMED = 3
"""Files that a sentence names."""


class Layer(Enum):
    """Layer that keeps a process from the user's files."""

    OVERLAY = "overlay"
    """It sees its own paths; every write on the machine lands in the workspace."""
    LANDLOCK = "landlock"
    """It runs in a copy of the job's folder, and may write nowhere else."""
    COPY = "copy"
    """It runs in a copy of the job's folder, and what it changes elsewhere is seen."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Place where processes of a trial run. folder: of the trial; directory: the job's own working folder. outputs:
    what the job wrote there while it was recorded; outside: what it wrote elsewhere. uncontained: whether processes run
    although they cannot be kept from something."""

    command: tuple[str, ...]
    folder: Path
    directory: Path
    outputs: Outputs = NO_OUTPUTS
    outside: tuple[Path, ...] = ()
    without: tuple[Path, ...] = ()
    keep: bool = False
    uncontained: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """Containment that this system permits. base: the folder in which its workspaces lie. janitor: removes all that
    lies there when the trial is over, or killed."""

    layer: Layer
    base: Path
    janitor: Janitor = field(default_factory=Janitor)


Contained = tuple[tuple[str, ...], VariantPlace]
"""The command of one process as it must be where it runs, and that place."""


# -- what is permitted -------------------------------------------------------------------------------------------------


def ground_of(workspace: Workspace) -> Ground:
    """The best that the system permits, found out once. What is not contained and accepted is held back by overlays
    alone, in which the job can do what it does: Landlock would refuse it."""
    ground = _ground(workspace.folder, workspace.directory)
    if workspace.uncontained and ground.layer is Layer.LANDLOCK:
        return replace(ground, layer=Layer.COPY)
    return ground


@functools.lru_cache
def _ground(folder: Path, directory: Path) -> Ground:
    janitor = Janitor()
    if overlays_work(folder, directory, janitor):
        return Ground(Layer.OVERLAY, folder, janitor)
    temporary = OwnFolder(Path(tempfile.mkdtemp(prefix="steptime-")))
    elsewhere = janitor.take(temporary) / "workspaces"
    if overlays_work(elsewhere, directory, janitor):
        return Ground(Layer.OVERLAY, elsewhere, janitor)
    clear(temporary)
    held = guards() and not any(Path(os.path.realpath(directory)).is_relative_to(path) for path in WRITABLE)
    return Ground(Layer.LANDLOCK if held else Layer.COPY, folder, janitor)


def overlays_work(base: Path, directory: Path, janitor: Janitor) -> bool:
    """True if a process can have overlays whose workspace lies in a folder; tried with one that does what jobs do."""
    trial = _workspace(base, f"check-{_process()}", janitor)
    try:
        (trial / "real").mkdir(parents=True, exist_ok=True)
        spec = _write_spec(trial, directory, (trial / "real",), (base,), check=[str(directory)])
        done = subprocess.run(_words(spec), capture_output=True, timeout=PATIENCE, check=False, pass_fds=janitor.held())
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        clear(trial)
        with contextlib.suppress(OSError):  # something else lies in it
            trial.parent.rmdir()
            base.rmdir()


def _workspace(base: Path, name: str, janitor: Janitor) -> OwnFolder:
    """The place of a new one."""
    for folder in (base, base / WORKSPACES):
        janitor.take_empty(folder)
    return janitor.take(own_folder(base, WORKSPACES, name))


def guards() -> bool:
    """True if this kernel has Landlock, in a version that lets files move between folders."""
    return contain.landlock_version() >= contain.OLDEST_LANDLOCK


def refuse_uncontained(workspace: Workspace) -> None:
    """Raises UsageError for what cannot be contained, where that was not accepted."""
    if workspace.uncontained:
        return
    remote = [word for word in workspace.command if REMOTE.search(word)]
    if remote:
        raise UsageError(
            "not-contained",
            f"The job is given {named(remote)}, and what a trial writes there is written: if it only reads there, or "
            "that does not matter, add --uncontained.",
        )
    if workspace.outside and ground_of(workspace).layer is not Layer.OVERLAY:
        raise UsageError(
            "not-contained",
            f"The job wrote to {named(workspace.outside)}, outside of its folder, and this system permits no user "
            "namespaces with overlays, which would keep a trial from doing the same: allow them, or add --uncontained.",
        )


def explain(workspace: Workspace) -> str:
    """Containment of this trial's processes, in words."""
    layer = ground_of(workspace).layer
    if layer is Layer.OVERLAY:
        return f"contained: what they write to any file goes to a workspace ({SAYS})"
    if workspace.uncontained:
        return "in private copies of the job's folder; what they change elsewhere is changed (--uncontained)"
    if layer is Layer.LANDLOCK:
        return f"in private copies of the job's folder, with writing anywhere else forbidden ({SAYS})"
    return f"in private copies of the job's folder; a change anywhere else that is seen ends the trial ({SAYS})"


# -- one process -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def contained(
    workspace: Workspace,
    name: str,
    recording: Path,
    sources: Sequence[tuple[str, str]] = (),
    deadline: float = 600.0,
    worker: str = "",
) -> Iterator[Contained]:
    """The setting of one process, which is gone afterwards. name: of it. recording: its own, which it writes for good.
    sources: files (relative paths) with other text. deadline: seconds. records: a name that no other process has which
    runs at the same time: what compilers keep is kept for the next one of that name."""
    ground, recording = ground_of(workspace), recording.absolute()
    scratch = _workspace(ground.base, name, ground.janitor)
    clear(scratch)  # of a process that was cut short
    try:
        with (
            _overlaid(workspace, ground, scratch, recording, sources, worker)
            if ground.layer is Layer.OVERLAY
            else _copied(workspace, ground, scratch, recording, sources)
        ) as (command, place):
            yield command, replace(place, deadline=deadline, contained=ground.layer.value, janitor=ground.janitor)
    finally:
        clear(scratch)


@contextlib.contextmanager
def _overlaid(
    workspace: Workspace,
    ground: Ground,
    scratch: Path,
    recording: Path,
    sources: Sequence[tuple[str, str]],
    worker: str,
) -> Iterator[Contained]:
    spec = _write_spec(
        scratch,
        workspace.directory,
        (recording,),
        tuple(dict.fromkeys((workspace.folder, ground.base))),
        (*workspace.outside, *_foreign_folders(workspace.directory)),
        sources=[(str(workspace.directory / path), text) for path, text in sources],
        caches=_kept_caches(ground, worker),
        lenient=workspace.uncontained,
    )
    environment = offline_environment(workspace.directory)
    yield workspace.command, VariantPlace(workspace.directory, environment, entry=_words(spec))


@contextlib.contextmanager
def _copied(
    workspace: Workspace, ground: Ground, scratch: Path, recording: Path, sources: Sequence[tuple[str, str]]
) -> Iterator[Contained]:
    guarded = ground.layer is Layer.LANDLOCK
    linking = guarded or workspace.uncontained
    place = make_copy(
        workspace.directory, scratch, workspace.outputs, (workspace.folder, *workspace.without), linking=linking
    )
    for path, text in sources:
        write_private(scratch, _in_copy(place, Path(path), scratch), text)
    own = f"{workspace.directory}/"
    command = tuple(  # its absolute paths of source files in the job's folder are moved into the copy
        str(place / word.removeprefix(own)) if word.startswith(own) and word.endswith(".py") else word
        for word in workspace.command
    )
    with tempfile.TemporaryDirectory(prefix="steptime-", ignore_cleanup_errors=True) as temporary:
        ground.janitor.take(OwnFolder(Path(temporary)))
        environment = (*offline_environment(place), *_temporary_folders(temporary, ground))
        entry: tuple[str, ...] = OPEN
        if guarded:
            writable = (scratch, recording, _caches(ground), temporary, *WRITABLE, *_cache_places())
            spec = Path(temporary) / "spec.json"
            spec.write_text(json.dumps({"writable": [str(path) for path in writable]}), encoding="utf-8")
            entry = _words(spec)
        yield command, VariantPlace(place, environment, entry=entry)


def _in_copy(place: Path, path: Path, copy: Path) -> Path:
    """From a file relative to the job's place in a copy, which may lie next to or above it, to one in the copy."""
    inside = Path(os.path.normpath(place / path))
    if not inside.is_relative_to(copy):
        raise UsageError(
            "folder-too-large",
            f"{path} cannot be tried with other text: the folders above the job's own hold too many files to make "
            "variants a working copy. Run the job from the folder of its script.",
        )
    return inside.relative_to(copy)


def _temporary_folders(temporary: str, ground: Ground) -> tuple[tuple[str, str], ...]:
    """Variables: temporary files in a folder of their own, with a path short enough for sockets; compilers' caches for
    all processes of the trial, where the user has not named others."""
    caches = _caches(ground)
    caches.mkdir(parents=True, exist_ok=True)
    kept = (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton"))
    return (
        ("TMPDIR", temporary),
        *((variable, str(caches / name)) for variable, name in kept if variable not in os.environ),
    )


def _caches(ground: Ground) -> Path:
    """Caches that compilers keep from one process of the trial to the next: this machine's, and this process's."""
    ground.janitor.take_empty(ground.base / CACHES)
    return ground.janitor.take(own_folder(ground.base, CACHES, _process()))


def _kept_caches(ground: Ground, worker: str) -> list[tuple[str, str]]:
    """Folders of caches, and where what the trial adds to them is kept from one process to the next."""
    kept = []
    for number, path in enumerate(_cache_places()):
        store = own_folder(_caches(ground), f"{number}{worker and '-'}{worker}")  # an overlay is nobody else's
        store.mkdir(parents=True, exist_ok=True)
        kept.append((path, str(store)))
    return kept


def _cache_places() -> tuple[str, ...]:
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{_user()}"
    named = (inductor, os.environ.get("TRITON_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), *USERS_CACHES)
    return tuple(dict.fromkeys(os.path.realpath(path) for name in named if name for path in _expanded(name)))


def _expanded(path: str) -> tuple[Path, ...]:
    """A path that may start with the user's home; nothing where the user has none."""
    try:
        return (Path(path).expanduser(),)
    except RuntimeError:
        return ()


def _process() -> str:
    """A name for this process: machines of a cluster share the folder of a trial."""
    return f"{os.getpid()}-{re.sub('[^A-Za-z0-9]', '-', socket.gethostname())[:64]}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.getuid())


def _write_spec(
    workspace: Path,
    directory: Path,
    real: Sequence[Path],
    hidden: Sequence[Path],
    ways: Sequence[Path] = (),
    **more: object,
) -> Path:
    """Request to launcher/contain.py."""
    layers = workspace / "layers"
    layers.mkdir(parents=True, exist_ok=True)
    usual = (directory, *_expanded("~"), Path(tempfile.gettempdir()))
    spec = {
        "scratch": str(layers),
        "directory": str(directory),
        "real": [str(path) for path in real],
        "hidden": [str(path) for path in hidden],
        "ways": [str(path) for path in (*usual, *ways, *(Path(path).parent for path in _cache_places()))],
        "caches": (),
        "sources": (),
        **more,
    }
    path = workspace / "spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def _foreign_folders(folder: Path) -> tuple[Path, ...]:
    """Folders of others below it in which this user may write: those of a group that shares a project."""
    if os.geteuid() == 0:
        return ()
    found = []
    for root, names, _ in itertools.islice(os.walk(folder), MOST_FOLDERS):
        names[:] = [name for name in names if name not in LINKED]
        if os.access(root, os.W_OK) and Path(root).stat().st_uid != os.geteuid():
            found.append(Path(root))
    return tuple(found)


def _words(spec: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", contain.__file__, str(spec))


# -- what is left ------------------------------------------------------------------------------------------------------


def leave(workspace: Workspace) -> None:
    """Removes what this process kept from one process of the trial to the next."""
    ground_of(workspace).janitor.close()


def named(paths: Sequence[Path | str]) -> str:
    """The first of them, in words."""
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(str(path) for path in paths[:MOST_NAMED]) + more
