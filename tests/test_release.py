"""What a release says about itself: the same everywhere, with links that work where it is shown."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from steptime import __version__

ROOT = Path(__file__).resolve().parent.parent
yaml = pytest.importorskip("yaml")
if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def hook() -> Any:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_are_addresses_on_the_index(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_REPOSITORY", "https://example.org/o/steptime/")
    monkeypatch.setenv("STEPTIME_REF", "v0.1.0")
    metadata: dict[str, Any] = {}
    hook.PublishedMetadata(str(ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    links = re.findall(r"""\]\(([^)\s]+)|\b(?:src|srcset|href)="([^"]+)""", text)
    assert links
    assert [each for pair in links for each in pair if each and not each.startswith(("https://", "#"))] == []
    ours = re.findall(r"https://example\.org/o/steptime/(raw|blob)/v0\.1\.0/([^)\"#\s]+)", text)
    assert ours
    for kind, path in ours:
        assert (ROOT / path).exists(), path
        assert (kind == "raw") == path.endswith(hook.PICTURES)
    assert metadata["urls"]["Homepage"] == "https://example.org/o/steptime"


def test_a_build_in_a_clone_claims_no_address(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPTIME_REPOSITORY", raising=False)
    metadata: dict[str, Any] = {}
    hook.PublishedMetadata(str(ROOT), {}).update(metadata)
    assert "urls" not in metadata
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_recipe_for_conda_asks_for_what_the_package_asks_for(project: Any) -> None:
    jinja = pytest.importorskip("jinja2")
    text = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(jinja.Template(text).render(environ={}, PYTHON="python"))
    assert recipe["package"]["version"] == __version__
    assert recipe["about"]["license"] == project["license"]
    asked = {each.replace(" ", "").replace("python-isal", "isal") for each in recipe["requirements"]["run"]}
    assert asked == {*project["dependencies"], f"python{project['requires-python']}"}


def test_the_citation_and_the_changes_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__


def test_the_release_publishes_what_was_built_and_tried() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert any(step.get("run") == "make package" for step in jobs["build"]["steps"])


def test_issue_templates_ask_for_a_report() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        fields = {each["id"]: each for each in yaml.safe_load(path.read_text(encoding="utf-8"))["body"]}
        assert "-o report.json" in fields["report"]["attributes"]["description"]
        assert fields["report"]["validations"]["required"]
