"""Runs a command that cannot change the user's files, with one of two kinds of containment that a kernel may have.

    python -I -S contain.py SPEC COMMAND [ARGUMENT]...

The script runs in its own process, needs no privilege and becomes the command; the command's descendants are under the
same rules. SPEC is the path of a JSON document, a `Spec`; "-" is no containment. The command's environment comes
through an open file (VARIABLES), so that no variable (LD_PRELOAD) has an effect before the rules have.

Overlays: in a user namespace and a mount namespace, every folder of the machine is an overlay. The command reads the
real files; its own writes go to a workspace that is removed. If a folder can be neither an overlay nor read-only, the
command is not started.

Landlock: the command can read everything and write to a few folders only. Not covered: times, modes and owners.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

NEWNS, NEWUSER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
SAME_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""Flags of a mount that a namespace must keep, by statvfs value: no set-uid, no devices, no programs, access times."""
LEFT = ("/proc", "/sys", "/dev", "/run")
"""Folders that stay the same, with no user files: devices, shared memory, sockets and process numbers of services."""
SHARED_MEMORY = "/dev/shm"
"""Folder whose files are shared between processes, also with services; its subfolders hold files."""
MOST_SOCKETS = 256
OLDEST_LANDLOCK = 2
"""First usable version; version 1 lets no file move from one folder to another."""
CREATE, ADD, RESTRICT = 444, 445, 446
"""Numbers of system calls, the same on all machines."""
NO_NEW_PRIVILEGES = 38
WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
ENTRIES = sum(1 << bit for bit in range(4, 13))
"""Access rights to remove and make files, folders, links, sockets, pipes and devices."""
TRUNCATE_SINCE = 3
VARIABLES = "STEPTIME_VARIABLES"
"""Variable with the descriptor of a JSON document, the command's environment. Without it, that is our own."""
NOT_CONTAINED = "-"
FAILED, NOT_EXECUTABLE = 125, 126
"""Exit statuses: our failure, and a shell's for a command that cannot be executed."""


class Spec(TypedDict, total=False):
    """Specification of a command's containment. writable: folders to write in, under Landlock; the other fields are for
    overlays.

    scratch: an empty folder for written files. directory: working folder of the command. real: folders written
    permanently. hidden: folders that look empty. ways: folders that must be writable, even if their parents have other
    owners. caches: (folder, store of what is written to it). sources: (file, replacing text). lenient: True if folders
    that cannot be overlays stay writable. check: folders whose writability is checked, without a command."""

    writable: list[str]
    scratch: str
    directory: str
    real: list[str]
    hidden: list[str]
    ways: list[str]
    caches: list[tuple[str, str]]
    sources: list[tuple[str, str]]
    lenient: bool
    check: list[str]


def main(arguments: Sequence[str]) -> int:
    """Contains this process and becomes the command. Returns an exit status only after a check or a failure."""
    environment = _environment()
    try:
        if contained(arguments[0]):
            return 0
    except OSError as error:
        sys.stderr.write(f"steptime: this trial process cannot be isolated from your files: {error}\n")
        return FAILED
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # an interpreter ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[1], list(arguments[1:]), environment)
    except OSError as error:
        sys.stderr.write(f"steptime: {arguments[1]} cannot be executed: {error.strerror}\n")
    return NOT_EXECUTABLE


def _environment() -> dict[bytes, bytes]:
    if VARIABLES in os.environ:
        with open(int(os.environ[VARIABLES]), encoding="ascii") as document:
            return {os.fsencode(name): os.fsencode(value) for name, value in json.load(document).items()}
    with open("/proc/self/environ", "rb") as file:  # as it was given to us: an interpreter adds a variable
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        return {name: value for name, _, value in pairs}


def contained(path: str) -> bool:
    """Contains this process by the specification in a file. Returns True if that was only a check. Raises OSError."""
    if path == NOT_CONTAINED:
        return False
    with open(path, encoding="utf-8") as file:
        spec: Spec = json.load(file)
    if "writable" in spec:
        restrict(spec["writable"])
    else:
        enter(spec)
    if "check" in spec:
        check(spec)
    return "check" in spec


def enter(spec: Spec) -> None:
    """Mounts overlays for this process. Raises OSError if the system does not allow it, or cannot do it."""
    _unshare()
    mount("", "/", "", RECURSIVE | PRIVATE)
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split()[4] for line in file]
    unescaped = (field.decode("unicode_escape").encode("latin-1") for field in fields)
    points = list(dict.fromkeys(map(os.fsdecode, unescaped)))
    overlaid = list(places(points))
    scratch = handle(spec["scratch"])
    real = [(path, handle(path)) for path in spec["real"]]
    caches = [(path, handle(path) if os.path.isdir(path) else None, handle(store)) for path, store in spec["caches"]]
    sockets = [(path, handle(path)) for path in live_sockets() if path.startswith(tuple(overlaid))]
    for path in LEFT:
        if os.path.isdir(path) and path not in points:
            mount(path, path, "", BIND | RECURSIVE)
    ways = [os.path.realpath(path) for path in spec["ways"]]
    refused = [
        path for number, path in enumerate(overlaid) if not _overlay(path, handle(path), scratch, f"{number}", ways)
    ]
    directory = os.path.realpath(spec["directory"])
    if not any(f"{directory}/".startswith(f"{path}/") for path in overlaid if path not in refused):
        raise OSError(errno.EOPNOTSUPP, "it cannot be an overlay", spec["directory"])
    for path in refused:
        mount(path, path, "", BIND | RECURSIVE)
    for path, own in sockets:
        with contextlib.suppress(OSError):  # it went away
            mount(seen(own), path, "", BIND)
    for path, lower, store in caches:
        _keep(path, lower, store)
    for path in filter(os.path.isdir, spec["hidden"]):
        mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=755")
    for path, own in real:
        os.makedirs(path, exist_ok=True)
        mount(seen(own), path, "", BIND)
    rest = [path for path in points if path not in overlaid and not path.startswith(LEFT)]
    for path in () if spec.get("lenient") else (*refused, *rest):
        make_read_only(path)  # last: what is taken from a place that can only be read could only be read, too
    os.chdir(spec["directory"])
    for path, text in spec["sources"]:
        replace_source(path, text)


def _keep(path: str, lower: int | None, store: int) -> None:
    """Mounts a cache, whose written files stay for the next process. lower: the user's folder, if it exists."""
    upper = os.path.join(seen(store), "upper")
    with contextlib.suppress(FileExistsError):
        os.mkdir(upper)
    with contextlib.suppress(OSError):  # no cache is no harm
        os.makedirs(path, exist_ok=True)
        if lower is None or not _overlay(path, lower, store, ""):
            mount(upper, path, "", BIND)


def replace_source(path: str, text: str) -> None:
    """Replaces a file's text; its mode stays."""
    path = os.path.realpath(path)
    mode = os.stat(path).st_mode if os.path.exists(path) else 0o644
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.chmod(partial, stat.S_IMODE(mode))
    os.replace(partial, path)


# -- what is there -----------------------------------------------------------------------------------------------------


def places(points: Sequence[str]) -> Iterator[str]:
    """Yields the folders to overlay: the largest ones without mounts inside, since an overlay in a user's namespace
    cannot cover these."""
    for point in points:
        if not point.startswith(LEFT) and os.path.isdir(point):
            yield from _free_of_mounts(point, points)
    yield from _folders_in(SHARED_MEMORY, points)


def _free_of_mounts(folder: str, points: Sequence[str]) -> Iterator[str]:
    inside = folder.rstrip("/") + "/"
    if folder != "/" and not any(point.startswith(inside) for point in points):
        yield folder
    else:
        yield from _folders_in(folder, points)


def _folders_in(folder: str, points: Sequence[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in names:
        if path not in points and path not in LEFT:
            yield from _free_of_mounts(path, points)


def live_sockets() -> list[str]:
    """Returns the paths of listening sockets: through an overlay, nobody would answer."""
    with open("/proc/net/unix", "rb") as file:
        fields = [line.rstrip(b"\n").split(None, 7) for line in file]
    paths = [os.fsdecode(words[7]) for words in fields if len(words) > 7]
    return [path for path in dict.fromkeys(paths) if path.startswith("/") and _is_socket(path)][:MOST_SOCKETS]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


# -- the kernel --------------------------------------------------------------------------------------------------------


def handle(path: str) -> int:
    """Returns a file descriptor of what is at the path now, whatever is mounted over it later."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def seen(own: int) -> str:
    return f"/proc/self/fd/{own}"


def _overlay(path: str, lower: int, scratch: int, name: str, ways: Sequence[str] = ()) -> bool:
    """True if the overlay could be made. name: of a new folder in the scratch; "" for the scratch itself."""
    home = os.path.join(seen(scratch), name)
    for folder in (home, os.path.join(home, "upper"), os.path.join(home, "work")):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    used = os.path.join(home, "work", "work")
    if os.path.isdir(used):  # it says that a process before this one has not written all of it to the disk, nor need it
        os.chmod(used, 0o700)
        shutil.rmtree(used, ignore_errors=True)
    for way in ways:
        _pave(way, path, os.path.join(home, "upper"))
    upper, work = handle(os.path.join(home, "upper")), handle(os.path.join(home, "work"))
    layers = f"lowerdir={seen(lower)},upperdir={seen(upper)},workdir={seen(work)}"
    before = os.stat(seen(lower))
    try:
        mount("overlay", path, "overlay", 0, f"{layers},userxattr,volatile")  # nothing waits for a disk when it ends
    except OSError:
        return False
    with contextlib.suppress(OSError):  # its root is the workspace's folder
        os.chmod(path, stat.S_IMODE(before.st_mode))
    return True


def _pave(way: str, path: str, upper: str) -> None:
    """Makes our own folders in the upper layer on the way to a folder. An overlay copies a folder, with its owner,
    before a change in it, and cannot do so for owners outside of this namespace."""
    inside = os.path.relpath(way, path)
    if inside == "." or inside.startswith("..") or not os.path.isdir(way):
        return
    for name in inside.split("/"):
        path, upper = os.path.join(path, name), os.path.join(upper, name)
        if not os.path.isdir(upper):
            os.mkdir(upper)
            os.chmod(upper, stat.S_IMODE(os.stat(path).st_mode) | 0o700)


def make_read_only(path: str) -> None:
    """Makes the mount at a path read-only. Raises OSError."""
    flags = os.statvfs(path).f_flag
    kept = sum(mounted for message, mounted in SAME_FLAGS.items() if flags & message)
    if not flags & os.ST_RDONLY:
        mount("", path, "", REMOUNT | BIND | READ_ONLY | kept)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    given = [os.fsencode(text) or None for text in (source, target, kind)]
    _checked(_LIBRARY.mount(*given, ctypes.c_ulong(flags), os.fsencode(data) or None), target)


def _unshare() -> None:
    """Makes namespaces in which users and groups keep their identity: all of them if possible, else this user alone."""
    user, group = os.geteuid(), os.getegid()
    helper = _Mapper() if user == 0 else None
    _checked(_LIBRARY.unshare(NEWUSER | NEWNS), "a user namespace")
    if helper is None or not helper.map_all():
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")


class _Mapper:
    """Child outside of the namespace: only from there can a privileged user's namespace get more than one identity."""

    def __init__(self) -> None:
        ready, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            os._exit(0 if os.read(ready, 1) and self._map(os.getppid()) else 1)
        os.close(ready)

    def map_all(self) -> bool:
        os.write(self._go, b".")
        os.close(self._go)
        _, status = os.waitpid(self._pid, 0)
        return status == 0

    @staticmethod
    def _map(process: int) -> bool:
        try:
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/self/{name}", encoding="ascii") as file:
                    ranges = [line.split() for line in file]
                with open(f"/proc/{process}/{name}", "w", encoding="ascii") as file:
                    file.write("".join(f"{first} {first} {count}\n" for first, _, count in ranges))
        except OSError:
            return False
        return True


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)


def check(spec: Spec) -> None:
    """Makes, renames and removes files in a spec's folders, as jobs do. Raises OSError for the first failure."""
    for folder in spec["check"]:
        first, second = (os.path.join(folder, f".steptime-{os.getpid()}-{number}") for number in range(2))
        with open(first, "w", encoding="ascii") as file:
            file.write("1")
        os.rename(first, second)
        os.unlink(second)
        os.mkdir(first)
        os.rmdir(first)
    _check_removal(spec["directory"], handle(spec["real"][0]))


def _check_removal(target: str, own: int) -> None:
    """Checks that files and folders of the lower layer can be removed, and made again empty: an overlay needs
    attributes for that, which some file systems lack."""
    lower = os.path.join(seen(own), "lower")
    os.makedirs(os.path.join(lower, "folder"), exist_ok=True)
    for path in ("folder/file", "file"):
        with open(os.path.join(lower, path), "w", encoding="ascii") as file:
            file.write("1")
    if not _overlay(target, handle(lower), own, "removal"):
        raise OSError(errno.EOPNOTSUPP, "no overlay can be made", target)
    os.unlink(os.path.join(target, "file"))
    os.unlink(os.path.join(target, "folder", "file"))
    os.rmdir(os.path.join(target, "folder"))
    os.mkdir(os.path.join(target, "folder"))
    if os.listdir(os.path.join(target, "folder")) or not os.path.exists(os.path.join(lower, "file")):
        raise OSError(errno.EIO, "what was removed came back", target)


# -- Landlock ----------------------------------------------------------------------------------------------------------


class _Handled(ctypes.Structure):
    _fields_ = [("access", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def landlock_version() -> int:
    """Returns the kernel's version of Landlock; 0 without it."""
    return max(0, int(_LIBRARY.syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict(writable: Sequence[str]) -> None:
    """Limits the writes of this process and its descendants to these folders. Raises OSError."""
    file_access = WRITE_FILE | (TRUNCATE if landlock_version() >= TRUNCATE_SINCE else 0)
    access = file_access | ENTRIES | REFER
    handled = _Handled(access)
    rules = _checked(_LIBRARY.syscall(CREATE, ctypes.byref(handled), ctypes.c_size_t(8), ctypes.c_uint32(0)))
    for path in writable:
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = _Beneath(access if os.path.isdir(path) else file_access, folder)
            _checked(_LIBRARY.syscall(ADD, rules, 1, ctypes.byref(allowed), ctypes.c_uint32(0)))
            os.close(folder)
    _checked(_LIBRARY.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(_LIBRARY.syscall(RESTRICT, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _checked(result: int, what: str = "Landlock") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


_LIBRARY: Any = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
