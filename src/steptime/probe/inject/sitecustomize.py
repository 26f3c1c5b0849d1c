"""Entry into the user's process, run by Python's `site` at start. If the process's environment has steptime, it runs by
steptime-start.pth, with any PYTHONPATH; else it is imported as sitecustomize, because `launch` puts its folder on
PYTHONPATH.

Until the process imports torch, it must behave as if this file had never run. No other file may be in this folder,
which is on the path for a moment. Only modules that a bare interpreter has loaded may be imported. The file must parse
in any Python that a job may start, old ones too (hence the type comments).
"""

import os
import sys

PLAN = "STEPTIME_PROBE"
OLDEST = (3, 10)
HIDDEN = "<frozen importlib._bootstrap>"
"""File name of import machinery: Python removes such frames from every traceback."""


class TorchFinder(object):  # noqa: UP004 - must parse in Python 2 as a new-style class
    """First finder on sys.meta_path until torch is imported; it wraps `exec_module` of torch's loader.

    Searching torch (`importlib.util.find_spec`) without an import changes nothing; a failed import may be tried again.
    """

    def __init__(self, folder):
        # type: (str) -> None
        self.folder = folder

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Returns torch's spec from the other finders, with a wrapped loader; None for all other names."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if getattr(spec, "has_location", False) and spec.loader is not None:
                    self.listen(spec.loader)  # type: ignore[no-untyped-call]
                return spec
        return None

    def listen(self, loader):  # type: ignore[no-untyped-def]
        """Wraps `loader.exec_module` on the instance, so that the loader keeps its type and all its other methods."""
        execute = loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            del loader.exec_module
            try:
                execute(module)
            except BaseException as error:
                # importlib.import_module shows its machinery: our frame leaves by hand (the raise adds none in >= 3.11)
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            self.imported()

        exec_module.__code__ = exec_module.__code__.replace(co_filename=HIDDEN)
        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader of somebody's own that takes no attributes
            self.give_up("torch's loader (" + type(loader).__name__ + ") cannot be observed")

    def imported(self):
        # type: () -> None
        """Removes this finder and starts the probe, after torch's import."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            start(self.folder)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self.give_up(type(error).__name__ + ": " + str(error))
            pass_on(error)

    def give_up(self, reason):
        # type: (str) -> None
        """Removes this finder for good, with one line on stderr, and a file for `steptime attach`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        leave_word("refused-" + str(os.getpid()), reason.encode("utf-8", "replace"))
        try:
            if sys.stderr is not None:
                sys.stderr.write("steptime: switched off: " + reason + "; the job goes on\n")
        except Exception as error:  # noqa: BLE001 - a full disk behind standard error, or whatever the user has put there
            pass_on(error)


def pass_on(error):
    # type: (BaseException) -> None
    """Raises again an error that a signal handler raised, as in steptime.probe.ours, which may not be loaded yet."""
    import signal

    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    trace = error.__traceback__
    while trace is not None:
        if any(trace.tb_frame.f_code is code for code in handlers):
            raise error
        trace = trace.tb_next


def start(folder):
    # type: (str) -> None
    """Starts the probe of the steptime that launched the job, whatever is installed in the user's environment.

    The name `steptime` stays the job's: its imports of it give the same result as without us, even a module of its own.
    Our modules are found under their full names; those that the probe needs are loaded once it has started."""
    root = os.path.dirname(os.path.dirname(folder))
    theirs, known = sys.modules.get("steptime"), sys.modules.get("steptime.probe")
    if known is not None and not is_in(known, os.path.join(root, "probe")):  # type: ignore[no-untyped-call]
        theirs_at = ", ".join(map(os.path.dirname, getattr(known, "__path__", []))) or str(known)
        raise ImportError("the job has loaded steptime from " + theirs_at + " (attach with that), not from " + root)
    ours = is_in(theirs, root)  # type: ignore[no-untyped-call]
    if not ours:
        load(root)  # type: ignore[no-untyped-call]
    try:  # `from steptime.probe import x` asks for the name, too, the first time that x is loaded
        probe = __import__("steptime.probe", fromlist=["start"])
        mark("torch")
        probe.start()
    finally:
        if theirs is not None:
            sys.modules["steptime"] = theirs
        elif not ours:
            del sys.modules["steptime"]


def is_in(module, folder):  # type: ignore[no-untyped-def]
    """True if the package is in that folder."""
    paths = list(getattr(module, "__path__", None) or [])
    return bool(paths) and os.path.realpath(paths[0]) == os.path.realpath(folder)


def load(root):  # type: ignore[no-untyped-def]
    """Loads the probe's package as `steptime`."""
    import importlib.util

    before = sys.modules.get("steptime")
    place = os.path.join(root, "__init__.py")
    spec = importlib.util.spec_from_file_location("steptime", place, submodule_search_locations=[root])
    if spec is None or spec.loader is None:
        raise ImportError("steptime is gone from " + root)
    package = importlib.util.module_from_spec(spec)
    loaded = list(sys.modules)
    sys.modules["steptime"] = package
    try:
        spec.loader.exec_module(package)
        import steptime.debug_switches
        import steptime.journal
        import steptime.probe  # noqa: F401
    except BaseException:  # half a package must not stay behind, whatever stopped it
        for name in [name for name in sys.modules if name not in loaded and name.partition(".")[0] == "steptime"]:
            del sys.modules[name]
        if before is not None:
            sys.modules["steptime"] = before
        raise


def mark(what):
    # type: (str) -> None
    """Adds this process to the file `seen-<what>` of the recording."""
    leave_word("seen-" + what, b"%d\n" % os.getpid())


def leave_word(name, word):
    # type: (str, bytes) -> None
    """Appends to a file of the recording. The plan is JSON that starts with the recording's path."""
    first, _, rest = os.environ.get(PLAN, "").partition(': "')
    if first == '{"recording"':
        try:
            path = os.path.join(unescaped(rest), name)
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            try:
                os.write(file, word)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:  # the recording is gone or the disk is full: the launcher will say so
            pass_on(error)


def unescaped(text):
    # type: (str) -> str
    """Returns the content of a JSON string, which ends at the first quotation mark."""
    found, letters = "", iter(text)
    for letter in letters:
        if letter == '"':
            break
        if letter == "\\":
            letter = next(letters, "")
            if letter == "u":
                letter = chr(int("".join(next(letters, "") for _ in range(4)), 16))
            else:
                letter = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}.get(letter, letter)
        found += letter
    return found


def enter():
    # type: () -> None
    """Waits for torch, in processes that may import it."""
    if not os.environ.get(PLAN) or sys.version_info < OLDEST:
        return
    if any("multiprocessing.resource_tracker" in word for word in sys.orig_argv):
        return
    if any(type(finder).__name__ == TorchFinder.__name__ for finder in sys.meta_path):
        return  # a second start-up file: of the user's own packages, or of the system's
    mark("python")
    if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        mark("importing")  # entered in the midst of it: whoever attaches asks again
        return
    finder = TorchFinder(here)
    sys.meta_path.insert(0, finder)
    if "torch" in sys.modules:  # a .pth file was earlier
        finder.imported()


here = os.path.dirname(__file__)
sys.path[:] = [entry for entry in sys.path if entry != here]
sys.path_importer_cache.pop(here, None)
enter()
if __name__ == "sitecustomize":
    # Hands over to the one that this shadows. Where there is none, the import fails with the very error that a bare
    # interpreter meets here and passes over, and nothing of this module is left in sys.modules.
    del sys.modules[__name__]
    __import__(__name__)
