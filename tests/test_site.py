"""The built site: strict, and its search finds the right page for the words that people type.

Needs the dependency group `docs`, here or in .site (`make site`); skipped without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE_PYTHON = ROOT / ".site" / "bin" / "python"
WANTED = {
    "dataloader": "symptoms.html",
    "num_workers": "symptoms.html",
    "oom": "symptoms.html",
    "gpu utilization": "symptoms.html",
    "conda": "symptoms.html",
    "slow": "symptoms.html",
    "nan": "nan.html",
    "hangs": "hang.html",
    "roofline": "reading-a-report.html",
    "parity": "statistics.html",
}
FIRST = 3
"""Pages that a person looks at."""


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has mkdocs-material and lunr."""
    for each in (sys.executable, str(SITE_PYTHON)):
        if Path(each).exists():
            asked = subprocess.run([each, "-c", "import lunr, material"], capture_output=True, timeout=60, check=False)
            if asked.returncode == 0:
                return each
    pytest.skip("no mkdocs-material and lunr: make site")


@pytest.fixture(scope="module")
def site(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def found(python: str, site: Path) -> dict[str, list[str]]:
    command = [python, str(ROOT / ".ci" / "search.py"), str(site), *WANTED]
    printed = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
    return dict(zip(WANTED, json.loads(printed), strict=True))


@pytest.mark.parametrize("words", WANTED)
def test_the_search_finds_the_right_page(found: dict[str, list[str]], words: str) -> None:
    assert WANTED[words] in found[words][:FIRST]


def test_a_word_that_nobody_wrote_is_not_found(python: str, site: Path) -> None:
    command = [python, str(ROOT / ".ci" / "search.py"), str(site), "qwertzuiop"]
    printed = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
    assert json.loads(printed) == [[]]
