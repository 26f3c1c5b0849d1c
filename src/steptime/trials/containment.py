"""Containment of a trial's processes, so that the user's files stay as they are: overlays, else a copy and Landlock,
else a copy.

One law: steptime prevents what the system can prevent, refuses the rest before anything starts, and runs it only with
--uncontained."""

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
"""Seconds within which the system must show whether it permits overlays."""
WORKSPACES, CACHES = "copies", "caches"
WRITABLE = ("/dev", "/proc", "/run")
"""Paths outside its workspace that a process under Landlock may write to: devices and shared memory, /proc, sockets."""
USERS_CACHES = ("~/.cache", "~/.triton", "~/.nv")
REMOTE = re.compile(
    r"\b(postgres(ql)?|mysql|mariadb|mssql|oracle|mongodb|rediss?|s3[an]?|gc?s|az|abfss?|wasbs?|adl|hdfs|viewfs|oss|cosn?|obs)"
    r"(\+\w+)?://"
)
"""Pattern of addresses of databases and object stores on other machines."""
SAYS = "network services are not contained"
MOST_FOLDERS = 5000
"""Most folders below the job's that are searched."""
MOST_NAMED = 3
"""Most files that a sentence names."""
_worked: set[tuple[Path, Path]] = set()
"""Folders in which a workspace has been an overlay, each with the job's: measuring a job and its trial ask in turn."""


class Layer(Enum):
    """Method that keeps a process from the user's files."""

    OVERLAY = "overlay"
    """The process sees its own paths; every write on the machine goes to the workspace."""
    LANDLOCK = "landlock"
    """The process runs in a copy of the job's folder, and may write nowhere else."""
    COPY = "copy"
    """The process runs in a copy of the job's folder, and steptime detects changes that it makes elsewhere."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Setting of a trial's processes. folder: the trial's folder; directory: the job's working folder. outputs: files
    that the job wrote in it while it was recorded; outside: files that it wrote elsewhere. without: paths that a copy
    leaves out. keep: True to keep the recordings of runs. uncontained: True to run processes even if they cannot be
    fully contained."""

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
    """Containment that this system permits. base: folder of the workspaces. janitor: remover of these when the trial is
    over, or killed."""

    layer: Layer
    base: Path
    janitor: Janitor = field(default_factory=Janitor)


Contained = tuple[tuple[str, ...], VariantPlace]
"""Command of one process, adapted to its workspace, and the place where it runs."""


# -- what is permitted -------------------------------------------------------------------------------------------------


def ground_of(workspace: Workspace) -> Ground:
    """Best containment that the system permits, determined once. With --uncontained the user has accepted writes that
    Landlock would refuse: the job then runs in a plain copy instead. Overlays refuse nothing."""
    ground = _ground(workspace.folder, workspace.directory)
    if workspace.uncontained and ground.layer is Layer.LANDLOCK:
        return replace(ground, layer=Layer.COPY)
    return ground


@functools.lru_cache
def _ground(folder: Path, directory: Path) -> Ground:
    janitor, place = Janitor(), (folder.parent, directory)
    if place in _worked or overlays_work(folder, directory, janitor):
        _worked.add(place)
        return Ground(Layer.OVERLAY, folder, janitor)
    temporary = OwnFolder(Path(tempfile.mkdtemp(prefix="steptime-")))
    elsewhere = janitor.take(temporary) / "workspaces"
    if overlays_work(elsewhere, directory, janitor):
        return Ground(Layer.OVERLAY, elsewhere, janitor)
    clear(temporary)
    held = guards() and not any(Path(os.path.realpath(directory)).is_relative_to(path) for path in WRITABLE)
    return Ground(Layer.LANDLOCK if held else Layer.COPY, folder, janitor)


def overlays_work(base: Path, directory: Path, janitor: Janitor) -> bool:
    """True if overlays work with their workspace in `base`: runs a process that does what jobs do."""
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
        with contextlib.suppress(OSError):  # something else is in it
            trial.parent.rmdir()
            base.rmdir()


def _workspace(base: Path, name: str, janitor: Janitor) -> OwnFolder:
    """Folder of a new workspace, registered with the janitor."""
    for folder in (base, base / WORKSPACES):
        janitor.take_empty(folder)
    return janitor.take(own_folder(base, WORKSPACES, name))


def guards() -> bool:
    """True if this kernel has Landlock, in a version that lets files move between folders."""
    return contain.landlock_version() >= contain.OLDEST_LANDLOCK


def refuse_uncontained(workspace: Workspace) -> None:
    """Raises UsageError for effects of the job that cannot be contained, unless the user accepted them
    (--uncontained)."""
    if workspace.uncontained:
        return
    remote = [word for word in workspace.command if REMOTE.search(word)]
    if remote:
        raise UsageError(
            "not-contained",
            f"The job's command names {named(remote)}, and steptime cannot undo what a trial writes there. If "
            "the job only reads there, or such writes do no harm, add --uncontained.",
        )
    if workspace.outside and ground_of(workspace).layer is not Layer.OVERLAY:
        raise UsageError(
            "not-contained",
            f"The job wrote to {named(workspace.outside)}, outside its folder, and this system forbids the "
            "user namespaces that would keep a trial from doing the same. Allow user namespaces with "
            "overlays, or add --uncontained.",
        )


def explain(workspace: Workspace) -> str:
    """Sentence on how this trial's processes are contained."""
    layer = ground_of(workspace).layer
    if layer is Layer.OVERLAY:
        return f"contained: all files they write go to a workspace ({SAYS})"
    if workspace.uncontained:
        return "in private copies of the job's folder; changes elsewhere are permanent (--uncontained)"
    if layer is Layer.LANDLOCK:
        return f"in private copies of the job's folder, with writes elsewhere forbidden ({SAYS})"
    return f"in private copies of the job's folder; a detected change elsewhere stops the trial ({SAYS})"


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
    """Context manager with the setting of one process, which is removed afterwards. name: name of the process;
    recording: its own folder, the only one whose files stay. sources: (relative path, new text) of changed files.
    deadline: limit in seconds. worker: name that no process running at the same time shares; compiler caches go to the
    next process with that name."""
    ground, recording = ground_of(workspace), recording.absolute()
    scratch = _workspace(ground.base, name, ground.janitor)
    if scratch.exists():  # of a process that was cut short, or that runs again
        ground.janitor.await_cleared()
        clear(scratch)
    try:
        with (
            _overlaid(workspace, ground, scratch, recording, sources, worker)
            if ground.layer is Layer.OVERLAY
            else _copied(workspace, ground, scratch, recording, sources)
        ) as (command, place):
            yield command, replace(place, deadline=deadline, contained=ground.layer.value, janitor=ground.janitor)
    finally:
        ground.janitor.clear(scratch)


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
    """Path in the copy of a file that is given relative to `place`, the job's folder in the copy. The file may be next
    to or above that folder. Raises UsageError if it is outside the copy."""
    inside = Path(os.path.normpath(place / path))
    if not inside.is_relative_to(copy):
        raise UsageError(
            "folder-too-large",
            f"steptime cannot try a change of {path}: the folders above the job's own contain too many files "
            "to copy. Run the job from the folder of its script.",
        )
    return inside.relative_to(copy)


def _temporary_folders(temporary: str, ground: Ground) -> tuple[tuple[str, str], ...]:
    """Environment variables for temporary files in a folder of their own, with a path short enough for sockets.
    Compiler caches are shared by all processes of the trial, unless the user has set them."""
    caches = _caches(ground)
    caches.mkdir(parents=True, exist_ok=True)
    kept = (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton"))
    return (
        ("TMPDIR", temporary),
        *((variable, str(caches / name)) for variable, name in kept if variable not in os.environ),
    )


def _caches(ground: Ground) -> Path:
    """Folder of the compiler caches that this steptime process keeps between processes of the trial, on this machine
    only."""
    ground.janitor.take_empty(ground.base / CACHES)
    return ground.janitor.take(own_folder(ground.base, CACHES, _process()))


def _kept_caches(ground: Ground, worker: str) -> list[tuple[str, str]]:
    """Pairs (cache folder, store): the trial's additions to a cache stay in its store from one process to the next."""
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
    """Path with the user's home expanded, as a tuple; () if the user has no home."""
    try:
        return (Path(path).expanduser(),)
    except RuntimeError:
        return ()


def _process() -> str:
    """Name of this process, unique across machines, because those of a cluster share a trial's folder."""
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
    """Writes a request to launcher/contain.py, and returns its path."""
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
    """Subfolders that other users own and this user may write to, as in a project that a group shares."""
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
    """Removes everything that this process kept between the runs of the trial."""
    ground_of(workspace).janitor.close()


def named(paths: Sequence[Path | str]) -> str:
    """Text with the first MOST_NAMED paths, and how many more there are."""
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(str(path) for path in paths[:MOST_NAMED]) + more
