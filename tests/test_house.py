"""The plan of ARCHITECTURE.md holds: imports point down, torch stays in the user's process, rooms stay readable."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from parsed import nodes_of, tree_of

from steptime.cli.main import MODULES, VERBS

SOURCE = Path(__file__).resolve().parent.parent / "src" / "steptime"

FLOORS = (  # from the ground up; a room imports itself and what lies on floors below its own
    ("_version", "arrays", "git", "own_python"),
    ("errors", "quantities", "intervals", "journal", "folders", "changes", "debug_switches", "plain_pickle"),
    ("clusters", "remote", "written"),
    ("probe",),
    ("recording", "trace", "machine"),
    ("launcher",),
    ("analysis",),
    ("advice",),
    ("trials",),
    ("answer",),
    ("report",),
    ("memory", "nan", "hang", "callables"),
    ("rank_result",),
    ("diagnosis", "compare", "live", "in_process"),
    ("cli", "api", "callbacks"),
    ("cell_magic",),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
APART = {("analysis", "launcher"), ("analysis", "probe")}
"""Neither the layout nor the probe knows the other; the recording is all that they share."""
OF_A_VERB = {"memory", "nan", "hang", "callables"}
"""Rooms that belong to one verb, each with its own texts and pages: the core works without them."""
DOORS = (
    {"rank_result.py": {"steptime.memory.in_report"}}
    | {f"cli/{room}.py": {f"steptime.{room}"} for room in OF_A_VERB}
    | {
        "cli/bench.py": {"steptime.callables"},
        "cli/bench_loader.py": {"steptime.callables"},
        "cli/env.py": {"steptime.callables"},
        "cli/kernel.py": {"steptime.callables"},
    }
    | {"api.py": {"steptime.memory", "steptime.callables"}}
)
"""Who opens them; a rank's result only for memory by owner and by module; `steptime.load` for a snapshot."""
SCRIPTS = (
    "machine/peaks_script.py",
    "machine/link_script.py",
    "machine/between_runs_script.py",
    "machine/bench_script.py",
    "machine/loader_script.py",
    "machine/formats_script.py",
    "machine/transfer_script.py",
    "machine/sweep_script.py",
    "machine/fork_script.py",
)
IN_THE_USERS_PROCESS = ("probe/", *SCRIPTS)
BROAD_EXCEPTS = (
    "probe/",
    "advice/engine.py",
    "cli/exit_codes.py",
    "remote.py",
    "machine/bench_script.py",
    "machine/loader_script.py",
    "machine/formats_script.py",
    "machine/sweep_script.py",
    "machine/fork_script.py",
)
PRINTS = ("cli/", "launcher/attach_script.py", *SCRIPTS)
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "tools"}

FILES = sorted(SOURCE.rglob("*.py"))


@dataclass(frozen=True)
class Module:
    """A file of the source, read and parsed once for all checks."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return relative(self.path)

    @property
    def package(self) -> str:
        return ".".join(("steptime", *self.path.relative_to(SOURCE).parts[:-1]))

    @property
    def in_the_users_process(self) -> bool:
        return self.name.startswith(IN_THE_USERS_PROCESS)


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    texts = ((path, path.read_text(encoding="utf-8")) for path in FILES)
    return [Module(path, text, tree_of(path)) for path, text in texts]


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Absolute names of all imported modules, wherever in the file; `from x import y` gives x.y: y may be a module."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def steptime_rooms(tree: ast.AST, package: str) -> set[str]:
    modules = [name.split(".") for name in imported_modules(tree, package)]
    return {name[1] for name in modules if name[0] == "steptime" and len(name) > 1} - {"__version__"}


def upward(room: str, tree: ast.AST, package: str) -> set[str]:
    """Rooms that `room` must not import, but does. What no floor names is its owner's to put on one."""
    return {
        other
        for other in steptime_rooms(tree, package)
        if other != room and (FLOOR[other] >= FLOOR[room] or (room, other) in APART)
    }


def test_a_room_imports_only_what_lies_below(modules: list[Module]) -> None:
    inner = [module for module in modules if module.name != "__init__.py"]
    found = {module.name: upward(room_of(module.path), module.tree, module.package) for module in inner}
    assert {name: rooms for name, rooms in found.items() if rooms} == {}


def circles(imports: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Groups of modules of which each imports every other one, if only by way of others."""

    def reached(start: str) -> set[str]:
        seen, new = set[str](), {start}
        while new:
            new = {each for name in new for each in imports.get(name, ())} - seen
            seen |= new
        return seen

    reach = {name: reached(name) for name in imports}
    return sorted({tuple(sorted(each for each in reach[name] if name in reach.get(each, ()))) for name in imports
                   if name in reach[name]})  # fmt: skip


def imports_of_files(modules: Iterable[tuple[str, ast.AST, str]]) -> dict[str, set[str]]:
    """(dotted name, tree, package) of files → which other files each names in its imports, late ones too."""
    every = list(modules)
    known = {name for name, _, _ in every}
    found = {}
    for name, tree, package in every:
        named = (each if each in known else each.rpartition(".")[0] for each in imported_modules(tree, package))
        found[name] = {each for each in named if each in known and each != name}
    return found


def test_no_file_imports_itself_by_way_of_others(modules: list[Module]) -> None:
    dotted = (f"steptime.{module.name}".removesuffix(".py").replace("/", ".") for module in modules)
    named = [name.removesuffix(".__init__") for name in dotted]
    files = ((name, module.tree, module.package) for name, module in zip(named, modules, strict=True))
    assert circles(imports_of_files(files)) == []


@pytest.mark.parametrize("late", ["from steptime.a import x", "def late():\n    from steptime import a"])
def test_a_circle_of_files_is_seen_wherever_they_import(late: str) -> None:
    texts = {"steptime.a": "import steptime.b", "steptime.b": "from .c import y", "steptime.c": late, "steptime.d": ""}
    files = [(name, ast.parse(text), "steptime") for name, text in texts.items()]
    assert circles(imports_of_files(files)) == [("steptime.a", "steptime.b", "steptime.c")]
    assert circles(imports_of_files(files[:2])) == []


def test_a_room_of_a_verb_is_imported_by_that_verb_only(modules: list[Module]) -> None:
    found = [
        (module.name, name)
        for module in modules
        if room_of(module.path) not in OF_A_VERB
        for name in imported_modules(module.tree, module.package)
        if name.split(".")[1:2] and name.split(".")[1] in OF_A_VERB
        if not name.startswith(tuple(DOORS.get(module.name, ("-",))))
    ]
    assert found == []


def imported_at_once(tree: ast.Module, package: str) -> set[str]:
    """The same of the imports that run when the file is imported: not those within functions."""
    inner = {id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
             for node in ast.walk(function)}  # fmt: skip
    outer = ast.Module([node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
                        and id(node) not in inner], [])  # fmt: skip
    return set(imported_modules(outer, package))


@pytest.mark.parametrize("verb", ["main", *(MODULES.get(verb, verb) for verb in VERBS)])
def test_the_help_imports_nothing_heavy(modules: list[Module], verb: str) -> None:
    """All files that importing the door, or a verb's, imports: none of them may ask for a package but click."""
    dotted = {f"steptime.{module.name}".removesuffix(".py").replace("/", ".").removesuffix(".__init__"): module
              for module in modules}  # fmt: skip
    reached, left, foreign = set[str](), {"steptime.cli.main", f"steptime.cli.{verb}"}, set[str]()
    while left:
        name = left.pop()
        reached.add(name)
        for each in imported_at_once(dotted[name].tree, dotted[name].package):
            near = each if each in dotted else each.rpartition(".")[0]
            left |= {near} - reached if near in dotted else set()
            foreign |= {each.partition(".")[0]} - sys.stdlib_module_names - {"steptime", "click"}
    assert len(reached) > 5
    assert foreign == set()


def test_the_package_itself_imports_nothing_but_its_version(modules: list[Module]) -> None:
    (package,) = (module for module in modules if module.name == "__init__.py")
    assert steptime_rooms(package.tree, "steptime") <= {"_version"}


@pytest.mark.parametrize(
    "line",
    [
        "import steptime.advice.rule",
        "from steptime.advice import rule",
        "from steptime import advice",
        "from ..advice import rule",
        "def late():\n    from steptime.report import report",
        "from steptime.launcher import launch",
    ],
)
def test_an_upward_import_is_seen_in_every_spelling(line: str) -> None:
    assert upward("analysis", ast.parse(line), "steptime.analysis")


def test_torch_is_imported_only_where_the_users_program_runs(modules: list[Module]) -> None:
    outside = [module for module in modules if not module.in_the_users_process]
    assert [module.name for module in outside if "torch" in top_modules(module)] == []


def top_modules(module: Module) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(module.tree, module.package)}


def test_the_users_process_gets_the_standard_library_torch_and_what_both_sides_read(modules: list[Module]) -> None:
    allowed = sys.stdlib_module_names | {"torch"}
    ours: tuple[str, ...] = ("steptime.journal", "steptime.debug_switches", "steptime.probe")
    ours += tuple(f"{Path(script).stem}." for script in SCRIPTS)  # of the same folder, which is on a script's path
    foreign = [
        (module.name, name)
        for module in modules
        if module.in_the_users_process
        for name in imported_modules(module.tree, module.package)
        if name.split(".")[0] not in allowed and not name.startswith(ours)
    ]
    assert foreign == []


def test_nothing_fixes_the_users_temporary_folder(modules: list[Module]) -> None:
    """tempfile keeps its first answer: a job that sets TMPDIR later would not have its folder."""
    observing = [
        each for each in modules if each.name.startswith("probe/") and not each.name.startswith("probe/changes/")
    ]
    assert [each.name for each in observing if "tempfile" in imported_modules(each.tree, each.package)] == []


def test_a_room_is_small_enough_to_read(modules: list[Module]) -> None:
    assert [module.name for module in modules if module.text.count("\n") > 800] == []
    limits = {ast.FunctionDef: 80, ast.AsyncFunctionDef: 80, ast.ClassDef: 250}
    long = [
        f"{module.name}:{node.lineno} {node.name}"
        for module in modules
        for node in nodes_of(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (node.end_lineno or 0) - node.lineno >= limits[type(node)]
    ]
    assert long == []


def test_every_python_of_ours_is_isolated_from_the_current_folder(modules: list[Module]) -> None:
    """`own_python` starts modules, and scripts of the standard library alone say -I themselves."""
    described = {"in_process.py"}  # the words of a job that has been started
    allowed = ["'-I'"], ["''"], ["shutil.which('python')"]
    for module in modules:
        for words in (node for node in nodes_of(module.tree) if isinstance(node, ast.List | ast.Tuple)):
            texts = [ast.unparse(each) for each in words.elts]
            if "sys.executable" in texts and module.name not in described and isinstance(words.ctx, ast.Load):
                assert texts[texts.index("sys.executable") + 1 :][:1] in allowed, (
                    f"{module.name}:{words.lineno} starts a Python that looks for modules in the current folder"
                )
        assert "ProcessPoolExecutor" not in module.text, f"{module.name}: a spawned pool looks there, too"


def test_git_is_asked_in_one_place(modules: list[Module]) -> None:
    """Elsewhere a command of Git's is only told."""
    for module in modules:
        reported = {
            id(word)
            for node in nodes_of(module.tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shlex.join"
            for word in ast.walk(node)
        }
        for node in nodes_of(module.tree):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "'git'":
                compared = module.name == "trials/results.py"
                assert module.name == "git.py" or id(node) in reported or compared, f"{module.name}:{node.lineno}"


def test_a_folder_of_a_trial_is_removed_in_one_place(modules: list[Module]) -> None:
    """`watchdog.clear` takes an `OwnFolder`, and only what checks names, or makes a new folder, makes one."""
    scripts = ("launcher/watchdog.py", "launcher/contain.py")
    makers = {"trials/names.py", "launcher/watchdog.py", "trials/containment.py"}
    for module in modules:
        if module.name.startswith(("trials/", "launcher/", "cli/")) and module.name not in scripts:
            assert "rmtree" not in module.text, module.name
        assert "OwnFolder(" not in module.text or module.name in makers, module.name


def test_a_broad_except_stands_at_a_boundary_and_says_why(modules: list[Module]) -> None:
    for module in modules:
        lines = module.text.splitlines()
        for node in nodes_of(module.tree):
            if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not raises_again(node):
                place = f"{module.name}:{node.lineno}"
                assert module.name.startswith(BROAD_EXCEPTS), place
                assert "#" in lines[node.lineno - 1] or "#" in lines[node.lineno], f"no reason at {place}"


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether it only does something on the way out: nothing is swallowed."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def is_broad(type_: ast.expr | None) -> bool:
    names = type_.elts if isinstance(type_, ast.Tuple) else [type_]
    return any(name is None or ast.unparse(name) in {"Exception", "BaseException"} for name in names)


CAUGHT_BY_MANY = {"BaseException", "Exception", "OSError", "RuntimeError", "NotImplementedError", "ValueError"}
"""Kinds of errors that handlers of signals raise, TimeoutError among them, which is an OSError."""
HANDED_ON = {"probe/ours.py", "probe/deadline.py:_ask_all"}
"""Who decides whose an error is, and who has a signal sent once more."""


def test_what_a_handler_of_the_jobs_raises_is_caught_nowhere(modules: list[Module]) -> None:
    """It may come out of the middle of our code: see `probe.ours`."""
    for module in modules:
        if not module.name.startswith(("probe/", "in_process.py", "callbacks")) or module.name in HANDED_ON:
            continue
        functions = [node for node in nodes_of(module.tree) if isinstance(node, ast.FunctionDef)]
        apart = {id(each) for function in functions if f"{module.name}:{function.name}" in HANDED_ON
                 for each in ast.walk(function)}  # fmt: skip
        for node in nodes_of(module.tree):
            if isinstance(node, ast.ExceptHandler) and id(node) not in apart and not raises_again(node):
                kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                wide = any(kind is None or ast.unparse(kind) in CAUGHT_BY_MANY for kind in kinds)
                asks = any(ast.unparse(each) == f"pass_on({node.name})" for each in node.body)
                assert asks or not wide, f"{module.name}:{node.lineno} asks `pass_on` of nothing"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "contextlib.suppress":
                wide = any(ast.unparse(kind) in CAUGHT_BY_MANY for kind in node.args)
                assert not wide, f"{module.name}:{node.lineno} suppresses what `ours.suppressed` does not"


def test_nothing_of_ours_is_called_when_an_object_of_the_jobs_goes(modules: list[Module]) -> None:
    """By the garbage collector, where an error of a signal's handler is printed and dropped: see `objects.Gone`."""
    for module in modules:
        if module.name.startswith("probe/"):
            calls = [node for node in nodes_of(module.tree) if isinstance(node, ast.Call)]
            called = [node for node in calls if ast.unparse(node.func) == "weakref.ref" and len(node.args) > 1]
            assert not called, f"{module.name}:{called[0].lineno}"
            assert not re.search(r"weakref\.(finalize|Weak\w+)\(|def __del__", module.text), module.name


def test_nothing_prints_but_the_doors(modules: list[Module]) -> None:
    printing = [
        f"{module.name}:{node.lineno}"
        for module in modules
        if not module.name.startswith(PRINTS)
        for node in nodes_of(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_only_the_doors_know_the_screen(modules: list[Module]) -> None:
    """What a verb has found is an `Answer`; how wide a terminal is, and whether there is one, decides nothing in it."""
    importing = [
        module.name
        for module in modules
        if not module.name.startswith(("cli/", "answer/"))
        if any(name.startswith("steptime.answer.screen") for name in imported_modules(module.tree, module.package))
    ]
    assert importing == []


def test_no_import_is_for_the_type_checker_only(modules: list[Module]) -> None:
    assert [module.name for module in modules if re.search(r"\bTYPE_CHECKING\b", module.text)] == []


def test_data_is_frozen(modules: list[Module]) -> None:
    """All but the probe's, which keeps running state and imports no more than it must."""
    thawed = [
        f"{module.name} {node.name}"
        for module in modules
        if not module.in_the_users_process
        for node in nodes_of(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for decorator in node.decorator_list
        if "dataclass" in ast.unparse(decorator)
        and not {"frozen=True", "slots=True"} <= {ast.unparse(word) for word in getattr(decorator, "keywords", ())}
    ]
    assert thawed == []


def test_data_is_declared_as_python_3_10_can(modules: list[Module]) -> None:
    later = [
        f"{module.name} {node.name} {word.arg}"
        for module in modules
        for node in nodes_of(module.tree)
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        for word in getattr(decorator, "keywords", ())
        if word.arg == "weakref_slot"
    ]
    assert later == []


def test_a_class_has_a_name_of_its_own(modules: list[Module]) -> None:
    homes: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module.name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_a_module_says_what_it_is_for(modules: list[Module]) -> None:
    assert [module.name for module in modules if module.text.strip() and not ast.get_docstring(module.tree)] == []


def test_names_say_what_is_inside() -> None:
    assert [path for path in FILES if EMPTY_NAMES & set(path.relative_to(SOURCE).with_suffix("").parts)] == []


def test_vendors_names_stand_in_one_table(modules: list[Module]) -> None:
    """Where a module needs to know a runtime call or a collective library, `trace/vendors.py` has its row."""
    elsewhere = [
        f"{module.name}:{node.lineno}"
        for module in modules
        if module.name != "trace/vendors.py" and not module.in_the_users_process
        for node in nodes_of(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
        if re.search(r"Mem(cpy|set|Alloc)|Launch|Synchronize|Malloc|[nrhx]ccl|gloo", ast.unparse(node))
    ]
    assert elsewhere == []


def test_every_room_has_its_floor_and_every_floor_its_room() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} == set(FLOOR)


OWN_NAMES = {
    "__init__.py": {"ending"},
    "calls.py": {"_observed"},
    "changes/exact.py": {"drawn"},
    "changes/switching.py": {"applier"},
    "changes/trial.py": {"session", "none"},
    "discovery.py": {"use"},
    "inlay.py": {"node", "function", "statement"},
    "line_work.py": {"work", "call"},
    "lines.py": {"top", "LineTimeline"},
    "loader.py": {"worker"},
    "numerics/operators.py": {"born"},
    "numerics/values.py": {"found"},
    "patches.py": {"fast_path"},
    "profiling.py": {"level"},
    "ranges.py": {"fast_path"},
    "repeats.py": {"top", "line"},
    "sampling.py": {"node", "called", "caller", "call", "function"},
    "schedule.py": {"session", "window", "top_module"},
    "session.py": {"session"},
}
"""Variables of the probe that hold objects of its own, by file; so do all whose names end in State."""
HELD = {"self._function", "self._iterator", "self._loader", "self._module", "self._optimizer", "self.sampler"}
"""Attributes of objects of the probe that may be the job's or torch's."""
FOREIGN = {
    "a function of torch's keeps its object and gets lines of ours": {"inlay.py self._function"},
    "a traceback loses the frame of ours that the error went through": {
        "calls.py error", "inject/sitecustomize.py error", "numerics/monitor.py error",
    },
    "the import of torch is told once, and the loader is as before": {
        "inject/sitecustomize.py exec_module", "inject/sitecustomize.py loader",
    },
    "Python asks for it: a line of a frame is told for a few steps": {
        "lines.py frame", "lines.py each", "repeats.py frame", "repeats.py each", "sampling.py frame",
        "sampling.py each",
    },
    "a descriptor in a class of torch's that hands out what was there": {
        "discovery.py torch.Tensor", "loader.py owner", "loader.py base", "loader.py fetcher",
        "loader.py instance.__dict__", "numerics/batches.py base", "objects.py torch.optim.Optimizer",
    },
    "torch's own switch, for a moment": {
        "memory/allocations.py level", "profiling.py profile", "profiling.py profile.profiler", "profiling.py packet",
    },
    "a function of C that torch's constructors call": {"sites.py torch._C", "deadline.py _add_pending"},
    "a change that a trial is to measure, of a function or a switch of torch's or Python's": {
        "changes/exact.py torch", "changes/exact.py torch.Tensor", "changes/exact.py tensor",
        "changes/exact.py inductor", "changes/loading.py DataLoader", "changes/loading.py torch.Tensor",
        "changes/models.py torch.backends.cudnn",
        "changes/models.py functional", "changes/models.py torch.nn.functional", "changes/models.py torch_checkpoint",
        "changes/models.py torch", "changes/outside.py torch", "changes/outside.py numpy.memmap",
        "changes/outside.py os", "changes/precision.py functional", "changes/process.py torch",
        "changes/process.py torch.backends.cudnn", "changes/process.py context", "changes/process.py newer",
        "changes/process.py older", "changes/seeds.py torch", "changes/seeds.py torch.random",
        "changes/seeds.py module", "changes/seeds.py seeded", "changes/updates.py Distributed",
        "changes/updates.py owner", "changes/updates.py wrapper", "changes/updates.py fsdp",
        "changes/updates.py torch.optim",
        "changes/variant.py multiprocessing.process.BaseProcess",
    },
    "a change that a trial is to measure, where torch itself keeps it: a copy has it, or is torch's own": {
        "changes/loading.py holder", "changes/models.py tensor", "changes/models.py block",
        "changes/precision.py module", "changes/process.py profiler.__dict__", "changes/updates.py model",
        "changes/updates.py optimizer",
        "changes/loading.py self", "changes/loading.py self.sampler", "changes/updates.py type(module)",
    },
}  # fmt: skip
"""Where the probe writes into what is not its own, and why nothing of the job's can be seen to change by it."""


def written_into(module: Module) -> Iterator[str]:
    """What a file assigns attributes of, or entries of whose `__dict__`, apart from its own `self`."""
    for node in nodes_of(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "delattr", "object.__setattr__"}:
            yield ast.unparse(node.args[0])
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        targets += [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
        for target in (each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])):
            owner = ast.unparse(target.value) if isinstance(target, ast.Attribute | ast.Subscript) else ""
            foreign = isinstance(target, ast.Attribute) and owner not in {"self", "cls"}
            if foreign or "__dict__" in owner or owner.startswith("vars("):
                yield owner


def test_the_probe_stores_nothing_in_what_is_not_its_own(modules: list[Module]) -> None:
    found = {
        f"{name} {owner}"
        for module in modules
        if module.name.startswith("probe/")
        for name in [module.name.removeprefix("probe/")]
        for owner in written_into(module)
        if owner.partition(".")[0] not in OWN_NAMES.get(name, ()) and not owner.endswith("State")
        if not owner.startswith("self.") or owner in HELD
    }
    assert found == {each for places in FOREIGN.values() for each in places}
