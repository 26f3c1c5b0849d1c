"""A Python that has imported torch already, and forks itself for every command line that it is given.

    python server.py DESCRIPTOR

DESCRIPTOR is of a socket that listens.

Importing torch takes 1.5 s of CPU, and a first optimizer step that imports its compiler another one: more than all
else that most jobs of the tests do. A forked child has both in memory, but not in sys.modules: the job's own `import
torch` finds them there in no time, through the import system, so that whatever waits for that import (steptime's
entry) sees it as ever.

What differs from a Python of its own: the parent process, the command line that the system shows, and one frame of
this file below every traceback. Tests of such things start sys.executable.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import multiprocessing.process
import multiprocessing.spawn
import os
import pkgutil
import random
import selectors
import signal
import socket
import sys
import threading
import types
import weakref
from typing import Any

MOST_WORDS = 1 << 20
"""Bytes of a command line with its environment."""
MOST_DESCRIPTORS = 200
ASIDE = 500
"""Descriptors from here on are out of the way of those that a job expects to have."""
SPAWNS_ARE_FORKS = "PRELOADED_SPAWNS_ARE_FORKS"
"""A variable of a job's environment: what it starts by multiprocessing's `spawn` is to be quick, too."""
SYSTEM = ctypes.CDLL(None, use_errno=True)


class Preloaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives modules out that were imported before and taken out of sys.modules."""

    def __init__(self, at_once: dict[str, types.ModuleType], later: dict[str, types.ModuleType]) -> None:
        self.at_once, self.later = at_once, later

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """For torch, and for what a plain `import torch` does not load; that comes with torch itself."""
        module = self.at_once.get(name) if name == "torch" else self.later.get(name)
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            return None
        found = module.__spec__.submodule_search_locations if module.__spec__ else None
        # A loader for each: steptime's entry replaces a method of torch's.
        loader = Preloaded(self.at_once, self.later)
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=found)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.at_once.get(spec.name) or self.later[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "torch":
            sys.modules.update(self.at_once)
            _take_threads()


def _take_threads() -> None:
    """OpenMP reads its variable when it is loaded, which was long ago."""
    count = os.environ.get("OMP_NUM_THREADS", "")
    if count.isdigit() and (torch := sys.modules["torch"]).get_num_threads() != int(count):
        torch.set_num_threads(int(count))


def preload() -> Preloaded:
    before = set(sys.modules)
    import torch

    at_once = _taken_since(before)
    for name in at_once:
        del sys.modules[name]
    sys.modules.update(at_once)
    import torch._dynamo  # what the first step of an optimizer imports

    later = {name: module for name, module in _taken_since(before).items() if name not in at_once}
    for name in [*at_once, *later]:
        del sys.modules[name]
    if "_dynamo" in vars(torch):
        del torch._dynamo
    return Preloaded(at_once, later)


def preload_steptime() -> dict[str, types.ModuleType]:
    """All of steptime but what runs in the user's process; for commands alone, so that a job has what it imports."""
    import steptime

    apart = ("steptime.probe", "steptime.launcher.contain", "steptime.__main__")
    for found in pkgutil.walk_packages(steptime.__path__, "steptime."):
        if not found.name.startswith(apart) and not found.name.endswith("_script"):
            importlib.import_module(found.name)
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "steptime"}


def _taken_since(before: set[str]) -> dict[str, types.ModuleType]:
    """torch's own modules; what it imports of others stays imported."""
    new = {name: module for name, module in sys.modules.items() if name not in before}
    return {name: module for name, module in new.items() if name.split(".")[0] in ("torch", "functorch")}


def serve(listener: socket.socket) -> dict[str, Any]:
    """Forks for every request, and tells each client how its child ended; returns in a child only, what it is to be.

    A client that goes away has been killed: so is its child.
    """
    children: dict[int, socket.socket] = {}
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as ready:
        for each in (listener, wake):
            ready.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    request = _receive(client)
                    child = os.fork() if request is not None else 0
                    if request is not None and child == 0:
                        for each in (listener, wake, waker, client, *children.values()):
                            each.close()
                        return request
                    if request is None:
                        client.close()
                        continue
                    for descriptor in request["descriptors"]:
                        os.close(descriptor)
                    children[child] = client
                    ready.register(client, selectors.EVENT_READ, child)
                    client.sendall(f"{child}\n".encode())
                elif key.fileobj is wake:
                    wake.recv(4096)
                    _reap(children, ready)
                elif key.data in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
                    ready.unregister(children.pop(key.data))


def _receive(client: socket.socket) -> dict[str, Any] | None:
    """The request, with the child's descriptors; None for a client that says nothing."""
    descriptors = array.array("i")
    length, ancillary, *_ = client.recvmsg(8, socket.CMSG_SPACE(MOST_DESCRIPTORS * descriptors.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if len(length) < 8 or (size := int.from_bytes(length, "big")) > MOST_WORDS:
        return None
    text = b""
    while len(text) < size:
        text += client.recv(size - len(text))
    request: dict[str, Any] = marshal.loads(text)
    return {**request, "descriptors": list(descriptors)}


def _reap(children: dict[int, socket.socket], ready: selectors.BaseSelector) -> None:
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        client = children.pop(child, None)
        if client is not None:
            ready.unregister(client)
            with contextlib.suppress(OSError):
                client.sendall(f"{status}\n".encode())
            client.close()


def become(
    request: dict[str, Any], finder: Preloaded, steptime: dict[str, types.ModuleType]
) -> tuple[types.CodeType, dict[str, Any]]:
    """Makes of a forked child what the command line asked for, up to the point at which Python runs its main file.
    Returns what is to be run, and where."""
    *descriptors, user, mounts = request["descriptors"]
    _enter_namespaces(user, mounts)
    _take_descriptors(descriptors, request["numbers"])
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        ignored = number in request["ignored"]
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if ignored else usual)
    with contextlib.suppress(OSError):  # a client in a session of its own
        os.setpgid(0, request["group"])
    os.chdir(request["directory"])
    multiprocessing.process.ORIGINAL_DIR = request["directory"]  # type: ignore[attr-defined]
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.meta_path.insert(0, finder)
    # Such children may look for their parent: Pythons of their own, where a test does not ask for forks.
    multiprocessing.spawn.set_executable(request["program"] if os.environ.get(SPAWNS_ARE_FORKS) else sys.executable)
    if request["words"][:2] == ["-m", "torch.distributed.run"]:
        sys.executable = request["program"]  # its ranks are forks, too
    elif request["words"][:2] == ["-m", "steptime"]:
        sys.modules.update(steptime)
    random.seed()
    return _main(request["words"])


def _enter_namespaces(user: int, mounts: int) -> None:
    """Those of the client, where a trial keeps it in some of its own: what a job writes there is to be thrown away. Of
    Landlock, which cannot be entered, a fork knows nothing."""
    for namespace, kind in ((user, "user"), (mounts, "mnt")):
        own = os.stat(f"/proc/self/ns/{kind}")
        if not os.path.samestat(os.stat(namespace), own) and SYSTEM.setns(namespace, 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), kind)
        os.close(namespace)


def _take_descriptors(descriptors: list[int], numbers: list[int]) -> None:
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, ASIDE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number in {0, 1, 2}.difference(numbers):
        os.close(number)
    sys.stdin = _stream(0)
    sys.stdout = _stream(1, "w")
    sys.stderr = _stream(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _stream(number: int, mode: str = "r", **options: Any) -> Any:
    """A standard stream, which lasts as long as the process; None, as of Python's own, where it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(number, mode, encoding="utf-8", closefd=False, **options)


def _main(words: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """As the interpreter's own command line: FILE, - for standard input, -m MODULE or -c CODE, then arguments."""
    while words and words[0] in ("-u", "-I", "-B", "-s"):
        words = words[1:]
    sys.orig_argv = [sys.executable, *words]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    kind, arguments = (words[0], words[1:]) if words[0] in ("-c", "-m") else ("", words)
    piped = arguments[0] == "-"
    first = "" if kind == "-c" or piped else os.getcwd() if kind else os.path.dirname(os.path.realpath(arguments[0]))
    extra = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [str(first), *extra, *sys.path[1:]]
    sys.argv = ["-c" if kind == "-c" else arguments[0], *arguments[1:]]
    _site()
    if kind == "-c":
        return compile(arguments[0], "<string>", "exec"), vars(main)
    if kind == "-m":
        spec = importlib.util.find_spec(arguments[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{arguments[0]}.__main__")
        assert spec is not None, f"No module named {arguments[0]}"
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        code = spec.loader.get_code(spec.name)
        assert code is not None
        vars(main).update(__file__=spec.origin, __spec__=spec, __package__=spec.parent)
        sys.argv[0] = str(spec.origin)
        return code, vars(main)
    if piped:
        return compile(sys.stdin.read(), "<stdin>", "exec"), vars(main)
    with open(arguments[0], "rb") as file:
        code = compile(file.read(), arguments[0], "exec")
    vars(main).update(__file__=arguments[0])
    return code, vars(main)


def _site() -> None:
    """What `site` does at the start of an interpreter: it lets programs in."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def run(code: types.CodeType, names: dict[str, Any]) -> None:
    """Runs it, and ends as the interpreter does, but for taking apart what is left: a fork would copy all of torch for
    that, a second of work."""
    status = 0
    try:
        exec(code, names)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - whatever a job raises
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    listener = socket.socket(fileno=int(sys.argv[1]))
    finder, steptime = preload(), preload_steptime()
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False  # torch would take its libraries apart in each fork: half of what a short one costs
    gc.collect()
    gc.freeze()
    code, names = become(serve(listener), finder, steptime)
    run(code, names)
