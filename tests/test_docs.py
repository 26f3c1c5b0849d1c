"""The documentation is complete and true: every rule, message, verb and option has its words, every command parses,
every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from device_recordings import report_of
from documents import text_of
from patience import PATIENCE
from preloading import steptime_words

from steptime import errors
from steptime.advice.engine import all_rules
from steptime.advice.explain import site_pages
from steptime.advice.fixes import CATALOGUE
from steptime.advice.rule import Weight
from steptime.analysis.categories import Category
from steptime.cli.explain import message_pages
from steptime.cli.main import VERBS, steptime
from steptime.cli.pages import page

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "steptime"
WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/**/*.md")])
MADE = {ROOT / "docs" / name: text for name, text in {**site_pages(), "commands.md": page()}.items()}
"""What the site has next to docs/."""
DOCUMENTS = {path: path.read_text(encoding="utf-8") for path in WRITTEN} | MADE
LONGEST_SECTION = 60
"""Lines of a section of CHANGELOG.md."""


ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def raised_slugs() -> set[str]:
    """The first argument of every error of ours that is made anywhere."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] not in ERRORS:
                continue
            if node.args and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


def commands(text: str) -> Iterator[str]:
    """Lines of sh blocks, comments and continuations taken away."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.strip():
                yield line.split("  #")[0].split(" # ")[0].strip()


def test_every_message_has_its_paragraph() -> None:
    assert raised_slugs() <= set(message_pages())


def test_every_paragraph_belongs_to_a_message() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    forgotten = [slug for slug in message_pages() if slug not in source and slug.replace("-", " ") not in source]
    parts = {slug: slug.partition("-") for slug in forgotten}
    composed = {slug for slug, (kind, _, rest) in parts.items() if f'f"{kind}-{{' in source and rest in source}
    assert set(forgotten) - composed == set()


def test_every_verb_and_option_has_its_words() -> None:
    assert page().count("Usage: steptime") == len(VERBS) + 1
    prose = "\n".join(text for path, text in DOCUMENTS.items() if path.name != "commands.md")
    for verb in VERBS:
        command = steptime.get_command(click.Context(steptime), verb)
        assert command is not None
        assert f"steptime {verb}" in prose
        assert command.help
        assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_every_link_leads_somewhere() -> None:
    dead = [
        (path.relative_to(ROOT).as_posix(), target)
        for path, text in DOCUMENTS.items()
        for target in links(text)
        if not leads(path, (path.parent / target.partition("#")[0]).resolve())
    ]
    assert dead == []


def leads(page: Path, target: Path) -> bool:
    """Whether there is such a file: in the repository, or on the site for a page that is there alone."""
    return target.exists() or (page in MADE and target in MADE)


def links(text: str) -> list[str]:
    """Targets of links inside of the project; code blocks are left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target for target in targets if not target.startswith(("http://", "https://", "#"))]


def test_every_command_in_the_docs_can_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path, text in DOCUMENTS.items():
        for line in commands(text):
            place = f"{path.relative_to(ROOT)}: {line}"
            words = shlex.split(line)
            if words[:3] == ["STEPTIME_STANDBY=1", "python", "train.py"]:  # see tests/launcher/test_attach.py
                continue
            if words[0] == "make":
                assert set(words[1:]) <= targets, place
            elif words[0] == "steptime":
                assert_it_parses(words[1:], place)
            elif "_STEPTIME_COMPLETE=" in line:
                assert re.search(r"=(bash|zsh|fish)_source steptime", line), f"{place}: see tests/cli/test_doors.py"
            elif words[:2] == ["python", "-m"]:
                monkeypatch.setattr(sys, "argv", words[2:])
                importlib.import_module(words[2]).arguments()  # ends where the words are wrong
            else:
                assert words[:2] in (["pip", "install"], ["pipx", "install"]), (
                    f"{place}: not a command that this test knows how to check"
                )


def assert_it_parses(words: list[str], place: str) -> None:
    try:
        follow(words)
    except click.UsageError as error:
        pytest.fail(f"{place}: {error.format_message()}")


def follow(words: list[str]) -> None:
    """Parses a command line as the command would, without doing it. Raises click.UsageError."""
    top = steptime.make_context("steptime", list(words))
    name, command, rest = steptime.resolve_command(top, [*getattr(top, "_protected_args", ()), *top.args])
    assert command is not None
    assert name in VERBS
    command.make_context(name, rest, parent=top)


def test_a_wrong_command_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        follow(["diagnose", "--no-such-option", "x"])
    with pytest.raises(click.UsageError):
        follow(["no-such-verb", "x"])


def test_rules_and_messages_share_no_name() -> None:
    rules = {word for rule in all_rules()[0] for word in (rule.code.lower(), rule.name)}
    assert not rules & set(message_pages())
    fixes = {word for fix in CATALOGUE for word in (fix.code.lower(), fix.name)}
    assert not fixes & (rules | set(message_pages()))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_how_it_works_defines_every_category_in_the_order_of_an_accelerator() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+): ", text.partition("## The breakdown")[2], re.MULTILINE)
    assert rows == [(category.name.lower(), str(category + 1)) for category in Category]


def test_files_that_a_page_names_are_there() -> None:
    known = {
        path.name
        for folder in ("src", "tests", "benchmarks", "examples", "docs")
        for path in (ROOT / folder).rglob("*.*")
    }
    known |= {path.name for path in ROOT.iterdir()}
    named = {
        (page, name.rpartition("/")[2])
        for page in ("ARCHITECTURE.md", "CONTRIBUTING.md")
        for name in re.findall(r"`([\w/.]+\.(?:py|md|toml))`", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert {(page, name) for page, name in named if name not in known} == set()


def test_the_docs_stay_short() -> None:
    """ARCHITECTURE.md is read in ten minutes, at 200 words a minute. A table that is looked up counts for nothing."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name not in ("guides.md", "course.md")]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in pages) <= 35_000
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= 2_000


def test_samples_of_output_have_the_categories_of_today() -> None:
    known = {category.name.lower() for category in Category} | {"other"}
    for path, text in DOCUMENTS.items():
        bars = re.findall(r"^ {2}(\w+) +[█░]{36} ", text, re.MULTILINE)
        assert set(bars) <= known, path


def test_a_section_of_the_changelog_can_be_read_at_once() -> None:
    _, *sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sections
    assert all(len(section.strip().splitlines()) <= LONGEST_SECTION for section in sections)


def test_the_readmes_gpu_example_is_what_diagnose_prints() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = steptime_words("diagnose", "tests/data/gpu/chargpt")
    reported = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert f"```text\n{reported.strip()}\n```" in readme


def test_the_task_for_vs_code_finds_the_lines_of_the_findings() -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    (task,) = json.loads(re.findall(r"```json\n(.*?)```", text[text.index("VS Code") :], re.DOTALL)[0])["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    report = report_of("resnet_float32")
    matches = [match for line in text_of(report).splitlines() if (match := re.match(pattern["regexp"], line))]
    found = [(match[pattern["file"]], int(match[pattern["line"]]), match[pattern["message"]]) for match in matches]
    sources = [each.source for each in report.processes[0].findings if each.weight is Weight.FINDING and each.source]
    assert found
    assert found == [(Path(each.file).name, each.line, each.text) for each in sources[: len(found)]]


def test_symptoms_name_rules_and_commands_that_exist() -> None:
    text = (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    assert len(names) > 5
    assert names <= {rule.name for rule in all_rules()[0]}
    lines = re.findall(r"`(steptime [^`]+)`", text)
    assert len(lines) > 10
    for line in lines:
        assert_it_parses(shlex.split(line)[1:], f"symptoms: {line}")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f": {page.name}" not in navigation] == []
