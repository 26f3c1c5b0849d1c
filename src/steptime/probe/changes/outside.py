"""Writes of a trial's process to files: behavior that containment requires, and reports of outside changes without it.

Contained (`launcher/contain.py`), the process cannot write to the user's files. An overlay would copy a large file
mapped for writing, and Landlock may refuse it, so it is mapped copy-on-write. An overlay cannot rename a folder of the
user's, so it is copied and removed, as `mv` does between file systems. Programs without torch get neither.

Without an overlay, a link in the private copy of the job's folder becomes a file before it is written, and changes
outside of the copy are reported. The state of a place is stored before an action and compared at the next boundaries,
so a failed attempt is not reported. Each is one note of the recording that starts with OUTSIDE. Temporary files, caches
and devices do not count.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from steptime.probe.ours import pass_on, suppressed

OUTSIDE = "changed outside of its folder: "
MOST = 64
"""Most places that are compared and reported."""
MOST_LINKS = 5000
"""Most entries of a folder of links; a larger one is a data set."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
HARMLESS = ("/dev", "/proc", "/sys", "/run", "~/.cache", "~/.config", "~/.triton", "~/.nv", "~/.local/share")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
CHANGED = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,),
    "shutil.rmtree": (0,), "shutil.move": (0, 1), "shutil.copyfile": (1,),
    "shutil.copytree": (1,), "shutil.unpack_archive": (1,),
}  # fmt: skip
"""Audit events, with the positions of the arguments that are changed paths."""
STARTED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
"""Audit events of started programs, which may change paths among their words."""
DESCRIBED = ("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr")
"""Audit events that change a file's metadata, after following links."""
WRITTEN = ("os.truncate", "sqlite3.connect")
"""Audit events that write into a file as `open` does."""


class OutsideWrites:
    """Listener to audit events that reports writes outside of the containment. note: writes a sentence."""

    def __init__(self, recording: str, note: Callable[[str], None]) -> None:
        self._copy = PrivateCopy(recording)
        harmless = [os.path.expanduser(path) for path in HARMLESS]
        named = [os.environ[name] for name in CACHES if name in os.environ]
        places = [os.getcwd(), recording, self._copy.root, tempfile.gettempdir(), *harmless, *named]
        self._inside = tuple(os.path.realpath(place) + os.sep for place in places)
        self._note = note
        self._before: dict[str, tuple[int, ...]] = {}

    def install(self) -> None:
        """Adds an audit hook, which cannot be removed, and wraps torch.save, whose C++ part opens files by itself."""
        sys.addaudithook(self._heard)
        original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self._wrote(f, keeps=False)
            return original(obj, f, *args, **kwargs)

        torch.save = save

    def look(self) -> None:
        """Reports the outside places that have changed since their stored state."""
        for place, before in list(self._before.items()):
            if _state(place) != before:
                del self._before[place]
                self._note(OUTSIDE + place)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        with suppressed(Exception):  # the probe's boundary: an error in an audit hook would be the user's
            if event == "open":
                path, mode, flags = arguments
                writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITING
                if writes:
                    self._wrote(path, keeps="w" not in mode if isinstance(mode, str) else not flags & os.O_TRUNC)
            elif event in WRITTEN:
                self._wrote(arguments[0], keeps=True)
            elif event in DESCRIBED and not isinstance(arguments[0], int):
                self._remember(os.path.realpath(os.fsdecode(arguments[0])))
            elif event in CHANGED:
                for number in CHANGED[event]:
                    self._moved(arguments[number], arguments[-1])
            elif event in STARTED:
                for path in _paths(arguments):
                    self._remember(path)

    def _wrote(self, path: Any, *, keeps: bool) -> None:
        """Handles a file that is about to be written. keeps: its content may still be read or appended to."""
        if isinstance(path, str | bytes | os.PathLike):
            with suppressed(OSError):  # the link stays, and what is behind it is reported
                self._copy.take(os.fsdecode(path), keeps=keeps)
            self._remember(os.path.realpath(os.fsdecode(path)))

    def _moved(self, path: Any, folder: Any) -> None:
        """Handles an entry of a folder that comes, goes or changes its metadata. folder: a descriptor that the path is
        relative to, if it is an integer above 2."""
        if isinstance(folder, int) and folder > 2:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        with suppressed(OSError):  # as above
            self._copy.own_folder(os.fsdecode(path))
        self._remember(os.fsdecode(path))

    def _remember(self, path: str) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        place = os.path.join(os.path.realpath(folder), name)
        if len(self._before) < MOST and not (place + os.sep).startswith(self._inside):
            self._before.setdefault(place, _state(place))


def _state(place: str) -> tuple[int, ...]:
    """Returns inode, size and times, which any change of a file or folder alters; () if there is none."""
    try:
        found = os.lstat(place)
    except OSError as error:
        pass_on(error)
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _paths(words: Any) -> Iterator[str]:
    """Yields absolute paths among a command's words, also inside of one for a shell."""
    if isinstance(words, str | bytes):
        for part in os.fsdecode(words).replace(">", " ").replace("=", " ").split():
            if part.startswith("/"):
                yield part.rstrip(";&|)\"'")
    elif isinstance(words, list | tuple):
        for word in words:
            yield from _paths(word)


class PrivateCopy:
    """Copy of the job's folder in which a variant runs (trials/working_copy), if it does. Entries too large to copy are
    links to the user's own, yet the job may write to them."""

    def __init__(self, recording: str) -> None:
        variants, name = os.path.split(os.path.realpath(recording))
        self.root = os.path.join(os.path.dirname(variants), "copies", name)

    def own_folder(self, path: str) -> str:
        """Returns the path after making its parent folders real ones instead of links; "" outside of the copy. Raises
        OSError for a folder with too many entries: its link stays, and the system may refuse the write."""
        place = os.path.normpath(os.path.join(os.path.realpath(os.getcwd()), path))
        if not place.startswith(self.root + os.sep):
            return ""
        inside = place.removeprefix(self.root + os.sep).split(os.sep)
        folder = self.root
        for name in inside[:-1]:
            folder = os.path.join(folder, name)
            if os.path.islink(folder) and os.path.isdir(folder):
                _unfold(folder)
        return os.path.join(folder, inside[-1])

    def take(self, path: str, *, keeps: bool) -> None:
        """Replaces a link out of the copy by a file, before it is written. Raises OSError, as own_folder does."""
        file = self.own_folder(path)
        if file and os.path.islink(file) and not os.path.isdir(file):
            partial = f"{file}.{os.getpid()}.partial"
            if keeps and os.path.exists(file):
                shutil.copyfile(file, partial)
                os.replace(partial, file)
            else:
                os.unlink(file)


def _unfold(link: str) -> None:
    """Replaces a link to a folder by a folder of links. Raises OSError."""
    target, partial = os.path.realpath(link), f"{link}.{os.getpid()}.partial"
    names = os.listdir(target)
    if len(names) > MOST_LINKS:
        raise OSError("a data set: its files are not linked one by one")
    os.mkdir(partial)
    for name in names:
        os.symlink(os.path.join(target, name), os.path.join(partial, name))
    os.unlink(link)
    os.rename(partial, link)


LARGE = 32 << 20
"""Bytes from which on an older file is mapped copy-on-write; copying a smaller one takes no time."""
MAPPED_TO_WRITE = ("r+", "readwrite")


def install(plan: dict[str, Any]) -> None:
    """Changes numpy.memmap, torch.from_file and renames in a contained process, from the import of torch on."""
    private = functools.partial(is_large_and_old, began=int(plan.get("began_epoch_ns") or 0))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.memmap.__new__ = staticmethod(_mapping(numpy.memmap.__new__, private))
    torch.from_file = _from_file(torch.from_file, private)
    if plan["contained"] == "overlay":
        os.rename = _renaming(os.rename)
        os.replace = _renaming(os.replace)


def is_large_and_old(path: Any, began: int) -> bool:
    """True for a large file that this trial has not written."""
    try:
        known = os.stat(path) if isinstance(path, str | bytes | os.PathLike) else None
    except (OSError, ValueError) as error:
        pass_on(error)
        return False
    return known is not None and known.st_size >= LARGE and known.st_ctime_ns < began


def _mapping(original: Callable[..., Any], private: Callable[[Any], bool]) -> Callable[..., Any]:
    """Wraps numpy.memmap's constructor, whose third argument is the mode."""

    @functools.wraps(original)
    def new(kind: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        mode = args[1] if len(args) > 1 else kwargs.get("mode", MAPPED_TO_WRITE[0])
        if mode in MAPPED_TO_WRITE and private(filename):
            if len(args) > 1:
                args = (args[0], "c", *args[2:])
            else:
                kwargs["mode"] = "c"
        return original(kind, filename, *args, **kwargs)

    return new


def _from_file(original: Callable[..., Any], private: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_file(filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(filename, False if shared and private(filename) else shared, *args, **kwargs)

    return from_file


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def rename(src: Any, dst: Any, **kwargs: Any) -> None:
        try:
            original(src, dst, **kwargs)
        except OSError as error:
            pass_on(error)
            if error.errno != errno.EXDEV or kwargs or os.path.islink(src) or not os.path.isdir(src):
                raise
            partial = f"{os.fsdecode(dst)}.{os.getpid()}.partial"
            shutil.copytree(src, partial, symlinks=True)
            original(partial, dst)
            shutil.rmtree(src)

    return rename
