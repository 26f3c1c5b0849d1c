"""`__all__` is what a module offers."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import steptime
from steptime import api, callbacks, in_process

SOURCE = Path(steptime.__file__).parent
IN_THE_USERS_PROCESS = ("probe/", *(f"machine/{name}_script.py" for name in ("peaks", "link", "between_runs", "bench")))


def modules_with_all() -> list[str]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if not relative.as_posix().startswith(IN_THE_USERS_PROCESS) and "__all__" in path.read_text(encoding="utf-8"):
            found.append(".".join(("steptime", *relative.with_suffix("").parts)).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_all())
def test_what_is_offered_exists_and_is_listed_once(name: str) -> None:
    module = importlib.import_module(name)
    offered = list(module.__all__)
    assert [word for word in offered if not hasattr(module, word)] == []
    assert len(set(offered)) == len(offered)


def test_the_package_itself_imports_nothing_heavy() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert imported == {"steptime._version"}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert steptime.__all__ == ["__version__", "bench", "callbacks", "load", "log_to", "record"]


def test_a_type_checker_knows_what_is_offered_and_is_shown_all_of_it() -> None:
    """`make lint` checks tests/typed with pyright; a name that is missing there is not checked."""
    stub = ast.parse((SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
    known = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert known == {"__version__", *vars(steptime)["ROOMS"]}
    program = ast.parse((Path(__file__).parent / "typed" / "every_public_name.py").read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(program) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
    offered = {*steptime.__all__, *api.__all__, *in_process.__all__, *callbacks.MAKERS}
    assert offered - used == set()


def test_what_the_package_offers_is_imported_when_it_is_asked_for() -> None:
    program = """
import sys, steptime
heavy = {"numpy", "msgspec", "jinja2", "steptime.api"}
assert not heavy & set(sys.modules)
assert "load" in dir(steptime)
assert callable(steptime.load)
assert heavy <= set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        steptime.nothing  # type: ignore[attr-defined]  # noqa: B018
