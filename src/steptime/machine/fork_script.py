"""Python that has imported torch, and forks for each process of a trial: its start takes a tenth of a second, not
seconds.

    python fork_script.py SOCKET

The script runs in the job's Python and uses the standard library and torch. It runs nothing of the job's: a fork gets
its own containment first, then becomes the job's command. The fork is the job's **watchdog** (`watchdog`), whose child
becomes the command, so that it is kept and ended as any other process of a trial.

The job's own `import torch` finds the modules in memory, through the import system, so that steptime's entry sees that
import as ever. A process is UNSOUND, and ends with that status, if the modules in memory are not those that it would
load: its script has changed variables before the import, or finds another torch. It is then started again without a
fork. SOCKET is a descriptor; the server ends when its other end is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import threading
import types
from typing import Any, NoReturn

UNSOUND = 97
"""Exit status of a process whose torch in memory is not the one that its own import would give."""
READY = b"ready"
OURS = frozenset({"STEPTIME_PROBE", "STEPTIME_INJECT"})
MOST_DESCRIPTORS = 8
LAUNCHER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "launcher")


class Becoming(BaseException):
    """Exception that unwinds a fork's stack, so that the job runs on nearly none. request: program to become."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request


class PackagesInMemory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder of packages that are already in memory, until the job has imported torch and all that torch
    imports. variables: the environment of the command."""

    def __init__(self, modules: dict[str, types.ModuleType]) -> None:
        self._modules = modules
        self._specs = {name: module.__spec__ for name, module in modules.items() if "." not in name}
        self.variables: dict[str, str] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._specs:
            return None
        here, there = self._specs[name], importlib.machinery.PathFinder.find_spec(name)
        if here is None or there is None or there.origin != here.origin or dict(os.environ) != self.variables:
            os._exit(UNSOUND)
        return importlib.util.spec_from_file_location(
            name, there.origin, loader=self, submodule_search_locations=there.submodule_search_locations
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]
        for name, each in self._modules.items():
            if module.__name__ == "torch" or name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(name, each)
        if module.__name__ == "torch":
            sys.meta_path.remove(self)


def preload() -> PackagesInMemory:
    """Imports torch, with all that its first optimizer imports, and takes all new packages out of sys.modules again;
    returns the finder that gives them to a fork."""
    before = set(sys.modules)
    import torch
    import torch._dynamo

    if torch.cuda.is_initialized() or threading.active_count() > 1:
        sys.exit("a fork would be unsound")
    new = [name for name in sys.modules if name not in before]
    theirs = [name for name in new if name.partition(".")[0] not in sys.stdlib_module_names]
    return PackagesInMemory({name: sys.modules.pop(name) for name in theirs})


def serve(connection: socket.socket) -> list[int]:
    """Forks for each request, and sends the fork's process ID. Returns, in a fork only, its request's descriptors."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system collects ended forks
    connection.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1, MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        fork = os.fork()
        if fork == 0:
            connection.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(b"%d" % fork)


def become_watchdog(descriptors: list[int]) -> NoReturn:
    """Makes this fork a watchdog, whose child raises `Becoming`. descriptors: a file with the request, the pipe that
    ends the job, its output, its errors, a pipe for its return code, and those to hold until the end."""
    document, asked, output, errors, status, *_ = descriptors
    with open(document, encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, descriptor in enumerate((asked, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)

    def become() -> NoReturn:
        for descriptor in descriptors[4:]:
            os.close(descriptor)
        raise Becoming(request)

    code = _script("watchdog").keep(become)
    os.write(status, b"%d" % code)
    os._exit(0)


def _open_files() -> set[int]:
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one by which they were listed
            os.fstat(number)
            found.add(number)
    return found


def _script(name: str) -> Any:
    """Loads a script of the launcher's, without a name in sys.modules."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(LAUNCHER, f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def become(request: dict[str, Any], finder: PackagesInMemory, kept: set[int]) -> tuple[types.CodeType, dict[str, Any]]:
    """Contains this process and gives it the state of a fresh Python that is about to run its main file. Returns that
    file's code, and the names that it runs with. kept: descriptors to keep open."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.chdir(request["directory"])
    contain = _script("contain")
    try:
        contain.contained(request["spec"])
    except OSError as error:
        sys.stderr.write(f"steptime: this trial process cannot be contained: {error}\n")
        os._exit(contain.FAILED)
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor in _open_files() - kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    random.seed()
    finder.variables = dict(os.environ)
    sys.meta_path.insert(0, finder)
    gc.unfreeze()
    return _main(list(request["words"]))


def _main(words: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """Prepares the command line as Python does. words: the interpreter, then FILE or -m MODULE, and arguments."""
    sys.orig_argv = list(words)
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__)
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    words = words[1:]
    module = words[1] if words[0] == "-m" else ""
    sys.argv = words[1:] if module else words
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.realpath(words[0])))
    _enter()
    if not module:
        path = os.path.abspath(words[0])
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __cached__=None, __loader__=loader)
        with open(path, "rb") as source:
            return compile(source.read(), path, "exec"), vars(main)
    import runpy

    _, spec, code = runpy._get_module_details(module)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin
    vars(main).update(
        __file__=spec.origin, __cached__=spec.cached, __loader__=spec.loader, __package__=spec.parent, __spec__=spec
    )
    return code, vars(main)


def _enter() -> None:
    """Runs steptime's entry, as `site` does at the start of an interpreter."""
    file = os.path.join(os.environ["STEPTIME_INJECT"], "sitecustomize.py")
    code = importlib.machinery.SourceFileLoader("steptime-start", file).get_code("steptime-start")
    exec(code, {"__name__": "steptime-start", "__file__": file})  # type: ignore[arg-type]


def run(code: types.CodeType, names: dict[str, Any]) -> NoReturn:
    """Runs the job, and ends as the interpreter does, without taking apart torch, of which a fork would copy all."""
    status = 0
    try:
        exec(code, names)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - whatever a job raises
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # an interpreter does so before it prints an error
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # this file's folder, which is none of the job's
    finder = preload()
    gc.collect()
    gc.freeze()
    kept = {0, 1, 2} | _open_files() - {int(sys.argv[1])}
    try:
        become_watchdog(serve(socket.socket(fileno=int(sys.argv[1]))))
    except Becoming as found:
        request = found.request
    code, names = become(request, finder, kept)
    del finder, request, kept
    run(code, names)
