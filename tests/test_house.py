"""The plan of ARCHITECTURE.md holds: imports point down, torch stays in the user's process, rooms stay readable."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "steptime"

FLOORS = (  # from the ground up; a room imports itself and what lies on floors below its own
    ("_version", "errors", "quantities", "intervals", "nesting", "journal", "folders", "changes", "debug_switches"),
    ("estimates", "clusters", "remote"),
    ("recording", "kineto", "hardware", "flight", "snapshots"),
    ("capture",),
    ("timeline", "work", "numerics"),
    ("links",),
    ("ledger", "memory"),
    ("roofline", "replay", "ranks", "excerpt"),
    ("findings",),
    ("remedies",),
    ("trials",),
    ("report",),
    ("diagnosis", "comparison", "history", "memory_triage"),
    ("cli", "notebook"),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
APART = {("timeline", "capture"), ("capture", "timeline")}
"""Neither the layout nor the probe knows the other; the recording is all that they share."""
IN_THE_USERS_PROCESS = ("capture/probe/", "capture/inject/", "hardware/ceilings_script.py", "hardware/link_script.py")
BROAD_EXCEPTS = ("capture/probe/", "capture/inject/", "findings/examine.py", "cli/border.py", "remote.py")
PRINTS = ("cli/", "report/text.py", "hardware/ceilings_script.py", "hardware/link_script.py")
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "tools"}

FILES = sorted(SOURCE.rglob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Absolute names of all imported modules, wherever in the file; `from x import y` gives x.y: y may be a module."""
    for node in ast.walk(tree):
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


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    return ".".join(("steptime", *path.relative_to(SOURCE).parts[:-1]))


@every_file
def test_a_room_imports_only_what_lies_below(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        late = {"notebook"}  # inside of __getattr__: tests/test_exports.py
        assert steptime_rooms(parse(path), "steptime") <= {"_version", *late}
    else:
        assert not upward(room_of(path), parse(path), package_of(path))


@pytest.mark.parametrize(
    "line",
    [
        "import steptime.ledger.ledger",
        "from steptime.ledger import ledger",
        "from steptime import ledger",
        "from ..ledger import ledger",
        "def late():\n    from steptime.report import report",
        "from steptime.capture import launch",
    ],
)
def test_an_upward_import_is_seen_in_every_spelling(line: str) -> None:
    assert upward("timeline", ast.parse(line), "steptime.timeline")


@every_file
def test_torch_is_imported_only_where_the_users_program_runs(path: Path) -> None:
    if not relative(path).startswith(IN_THE_USERS_PROCESS):
        assert "torch" not in {name.split(".")[0] for name in imported_modules(parse(path), package_of(path))}


@pytest.mark.parametrize(
    "path", [path for path in FILES if relative(path).startswith(IN_THE_USERS_PROCESS)], ids=lambda path: relative(path)
)
def test_the_users_process_gets_the_standard_library_torch_and_what_both_sides_read(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"torch"}
    ours = ("steptime.journal", "steptime.debug_switches", "steptime.capture.probe")
    for name in imported_modules(parse(path), package_of(path)):
        assert name.split(".")[0] in allowed or name.startswith(ours), name


@every_file
def test_a_room_is_small_enough_to_read(path: Path) -> None:
    tree = parse(path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(tree):
        limit = 80 if isinstance(node, ast.FunctionDef) else 250 if isinstance(node, ast.ClassDef) else None
        if limit and isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert (node.end_lineno or 0) - node.lineno < limit, node.name


@every_file
def test_a_broad_except_stands_at_a_border_and_says_why(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not raises_again(node):
            assert relative(path).startswith(BROAD_EXCEPTS), f"line {node.lineno}"
            assert "#" in lines[node.lineno - 1] or "#" in lines[node.lineno], f"no reason at line {node.lineno}"


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether it only does something on the way out: nothing is swallowed."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def is_broad(type_: ast.expr | None) -> bool:
    names = type_.elts if isinstance(type_, ast.Tuple) else [type_]
    return any(name is None or ast.unparse(name) in {"Exception", "BaseException"} for name in names)


@every_file
def test_nothing_prints_but_the_doors(path: Path) -> None:
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    printing = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not printing or relative(path).startswith(PRINTS), printing


@every_file
def test_no_import_is_for_the_type_checker_only(path: Path) -> None:
    assert not re.search(r"\bTYPE_CHECKING\b", path.read_text(encoding="utf-8"))


@every_file
def test_data_is_frozen(path: Path) -> None:
    if relative(path).startswith(IN_THE_USERS_PROCESS):
        return  # the probe keeps running state, and imports no more than it must
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for decorator in node.decorator_list:
                options = {ast.unparse(word) for word in getattr(decorator, "keywords", ())}
                assert "dataclass" not in ast.unparse(decorator) or {"frozen=True", "slots=True"} <= options, node.name


@every_file
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parse(path)) or not path.read_text(encoding="utf-8").strip()


@every_file
def test_names_say_what_is_inside(path: Path) -> None:
    assert not EMPTY_NAMES & set(path.relative_to(SOURCE).with_suffix("").parts)


def test_every_room_has_its_floor_and_every_floor_its_room() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} == set(FLOOR)
