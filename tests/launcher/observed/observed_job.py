"""A job that looks at itself: prints one JSON object with every property that a bare run and a watched run must share.

usage: observed_job.py plain|torch [long]. Nothing that differs from run to run (process numbers, addresses, times) is
printed.
"""

import sys

MODULES_AT_START = sorted(sys.modules)
FINDERS_AT_START = [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]

import atexit  # noqa: E402
import copy  # noqa: E402
import dataclasses  # noqa: E402
import faulthandler  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402
import hashlib  # noqa: E402
import importlib  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402
import tracemalloc  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

GRANDCHILD = "import os, sys; print(sorted(os.listdir('/proc/self/fd')), sys.path, sorted(sys.modules))"
OURS = ("STEPTIME_INJECT", "STEPTIME_PROBE", "KINETO_LOG_LEVEL", "PYTHONPATH")


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value


@dataclasses.dataclass
class Record:
    value: int


def square(number: int) -> tuple[int, str, int, list[str]]:
    """Run in a child process: the square, who it thinks it is, its stack, and its path."""
    return number**2, __name__, len(inspect.stack()) if __name__ == "__main__" else 0, sys.path


def pool(method: str) -> list[Any]:
    with multiprocessing.get_context(method).Pool(1) as workers:
        return workers.map(square, [2, 3])


def main_module() -> dict[str, Any]:
    main = sys.modules["__main__"]
    spec = main.__spec__
    frames = inspect.stack()
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "__name__": __name__,
        "__file__": __file__,
        "__spec__": None if spec is None else [spec.name, spec.origin, spec.cached],
        "__package__": main.__package__,
        "__loader__": type(main.__loader__).__name__,
        "__cached__": getattr(main, "__cached__", "none"),
        "__doc__": main.__doc__,
        "names in __main__": sorted(vars(main)),
        "globals is __main__": globals() is vars(main),
        "sys.path": sys.path,
        "sys.path_importer_cache": sorted(sys.path_importer_cache),
        "path hooks": [getattr(hook, "__name__", repr(hook)) for hook in sys.path_hooks],
        "modules at start": MODULES_AT_START,
        "finders at start": [name for name in FINDERS_AT_START if name != "TorchFinder"],
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "pickled class": pickle.loads(pickle.dumps(Plain(3))).value,
        "pickled dataclass": pickle.loads(pickle.dumps(Record(4))).value,
        "pickle names the module": b"__main__" in pickle.dumps(Plain(3)),
        "source": hashlib.sha256(inspect.getsource(square).encode()).hexdigest(),
        "source file": inspect.getsourcefile(Plain),
        "stack depth": len(frames),
        "stack": [[frame.filename, frame.function] for frame in frames],
    }


def interpreter() -> dict[str, Any]:
    return {
        "executable": sys.executable,
        "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "flags": str(sys.flags),
        "warnoptions": [sys.warnoptions, sys._xoptions],
        "warnings filters": str(warnings.filters),
        "showwarning": warnings.showwarning.__module__,
        "excepthook": sys.excepthook is sys.__excepthook__,
        "displayhook": sys.displayhook is sys.__displayhook__,
        "unraisablehook": sys.unraisablehook is sys.__unraisablehook__,
        "breakpointhook": sys.breakpointhook is sys.__breakpointhook__,
        "threading.excepthook": threading.excepthook.__module__,
        "trace and profile": [repr(sys.gettrace()), repr(sys.getprofile())],
        "threads' trace": repr(getattr(threading, "_trace_hook", None)),
        "threads' profile": repr(getattr(threading, "_profile_hook", None)),
        "asyncgen hooks": str(sys.get_asyncgen_hooks()),
        "import": repr(__import__),
        "builtins": sorted(vars(sys.modules["builtins"])),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "dont_write_bytecode": sys.dont_write_bytecode,
        "faulthandler": faulthandler.is_enabled(),
        "tracemalloc": tracemalloc.is_tracing(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "gc callbacks": [name for name in map(_module_of, gc.callbacks) if not name.startswith("steptime.")],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "locale": [locale.getlocale(), sys.getfilesystemencoding(), sys.stdout.encoding, sys.stderr.errors],
        "streams": [[s.isatty(), s.line_buffering, s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "monitoring": _monitoring(),
    }


def _module_of(callback: Any) -> str:
    """Where it comes from; of a partial call (ours is one of getattr, all in C), where its argument comes from."""
    if isinstance(callback, functools.partial):
        callback = type(callback.args[0])
    return str(getattr(callback, "__module__", type(callback).__module__))


def _monitoring() -> list[str | None]:
    monitoring = getattr(sys, "monitoring", None)
    return [] if monitoring is None else [monitoring.get_tool(number) for number in range(6)]


def process() -> dict[str, Any]:
    seen = subprocess.run(
        [sys.executable, "-c", GRANDCHILD],
        close_fds=False,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "directory": str(Path.cwd()),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name not in OURS},
        "PYTHONPATH of the user": _users_path(),
        "stdin": sys.stdin.read(),
        "signals": {number.name: _handler(number) for number in signal.Signals},
        "signal mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "files": sorted(_files()),
        "a child of a child": seen.stdout,
        "limits": [resource.getrlimit(number) for number in range(16)],
        "umask and niceness": [os.umask(os.umask(0)), os.nice(0), os.umask(os.umask(0))],
        "processors": sorted(os.sched_getaffinity(0)),
        "leads a group": os.getpgrp() == os.getpid(),
        "own children": len(multiprocessing.active_children()),
    }


def _handler(number: signal.Signals) -> str:
    handler = signal.getsignal(number)
    return handler.__name__ if inspect.isroutine(handler) else str(handler)


def _users_path() -> list[str]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and not entry.endswith("probe/inject")]


def _files() -> list[str]:
    """What is open, apart from pipes' numbers and the recording's own files."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the folder's own
        if f"{os.sep}process-{os.getpid()}{os.sep}" not in target and not target.startswith("/proc/"):
            found.append(f"{entry.name} {target.split(':')[0]}")
    return found


def randomness() -> dict[str, Any]:
    states = {"random": hashlib.sha256(repr(random.getstate()).encode()).hexdigest()}
    if "numpy" in sys.modules:
        states["numpy"] = hashlib.sha256(repr(sys.modules["numpy"].random.get_state()).encode()).hexdigest()
    if "torch" in sys.modules:
        states["torch"] = hashlib.sha256(sys.modules["torch"].get_rng_state().numpy().tobytes()).hexdigest()
    return states


def train() -> dict[str, Any]:
    """Trains a small model with a loader that has workers; what a user can see of torch afterwards."""
    import numpy
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    numpy.random.seed(7)
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    steps = 1500 if "long" in sys.argv else 800  # the windows of a watch are over, or all that it ever does
    data = TensorDataset(torch.randn(steps, 8), torch.randn(steps, 1))
    losses = []
    for _ in range(2):
        for inputs, targets in DataLoader(data, batch_size=2, shuffle=True, num_workers=1):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        schedule.step()
    return {"losses": losses, **_torch_properties(torch, model, optimizer), **_torch_failures(torch, model)}


def _torch_properties(torch: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    module = torch.nn.modules.module
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    steps = (torch.optim.Adam.step, torch.amp.GradScaler.step, torch.nn.Module.__call__)
    public = (torch.autograd.backward, torch.autograd.grad, torch.save, torch.Tensor.backward, *steps)
    hooks = sorted(name for name in dir(module) if name.startswith("_global_") and "hooks" in name)
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        "torch loader": [type(torch.__loader__).__name__, sorted(vars(torch.__loader__)), torch.__spec__.origin],
        "torch source": len(inspect.getsource(torch)),
        "state": [sorted(model.state_dict()), str(optimizer.state_dict()["param_groups"])],
        "copied": sorted(vars(copy.deepcopy(model))),
        "pickled": hashlib.sha256(pickle.dumps(model.state_dict()["0.bias"].tolist())).hexdigest(),
        "global hooks": {name: len(getattr(module, name)) for name in hooks},
        "own hooks": [len(model._forward_hooks), len(model._forward_pre_hooks), len(model._backward_hooks)],
        "functions": [[f.__name__, f.__module__, f.__qualname__, f.__doc__] for f in public],
        "signatures": [str(inspect.signature(f)) for f in public],
        "sources of functions": [hashlib.sha256(inspect.getsource(f).encode()).hexdigest() for f in public],
        "settings": [torch.get_num_threads(), torch.is_anomaly_enabled(), torch.is_grad_enabled()],
        "default type": str(torch.get_default_dtype()),
        "profiler": torch.autograd._profiler_enabled(),
        "resource": resource.getrusage(resource.RUSAGE_CHILDREN).ru_nsignals,
    }


def _torch_failures(torch: Any, model: Any) -> dict[str, Any]:
    class Failing(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, tensor: Any) -> Any:
            return tensor * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            raise RuntimeError("no gradient today")

    texts = {}
    try:
        model(torch.zeros(3, 9))
    except RuntimeError:
        texts["failure in a forward"] = traceback.format_exc()
    try:
        Failing.apply(model(torch.zeros(3, 8))).sum().backward()
    except RuntimeError:
        texts["failure in a backward"] = traceback.format_exc()
    try:
        importlib.import_module("torch.no_such_module")
    except ImportError as error:
        texts["failure of an import"] = traceback.format_exc() + str(error.name)
    return texts


def observe(mode: str) -> dict[str, Any]:
    random.seed(7)
    before = main_module()  # before torch brings its modules
    trained = train() if mode == "torch" else {}
    return {
        **before,
        **trained,
        **interpreter(),
        **process(),
        **randomness(),
        **{method: pool(method) for method in ("fork", "spawn", "forkserver")},
        "modules at end": sorted(name for name in sys.modules if name.partition(".")[0] != "steptime"),
    }


def late(name: str) -> None:
    """Pickles something of __main__ when the main function has ended long ago."""
    sys.stdout.write(f"{name}: {len(pickle.dumps(Plain(5)))} {len(pickle.dumps(Record(5)))} {len(inspect.stack())}\n")


def late_thread() -> None:
    threading.main_thread().join()
    late("late thread")


if __name__ == "__main__":
    atexit.register(late, "first registered")
    json.dump(observe(sys.argv[1]), sys.stdout)
    sys.stdout.write("\n")
    threading.Thread(target=late_thread).start()
    atexit.register(late, "last registered")
