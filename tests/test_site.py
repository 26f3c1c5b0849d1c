"""The built site: strict, and its search index holds the words that people type. Skipped where mkdocs is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WANTED = {
    "dataloader": "symptoms.html",
    "num_workers": "symptoms.html",
    "oom": "symptoms.html",
    "gpu utilization": "symptoms.html",
    "conda": "symptoms.html",
    "slow": "symptoms.html",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Text of each page of the site, headings included, by its name."""
    pytest.importorskip("mkdocs")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    texts: dict[str, str] = {}
    for entry in json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]:
        name = entry["location"].partition("#")[0]
        texts[name] = f"{texts.get(name, '')} {entry['title']} {entry['text']}".lower()
    return texts


@pytest.mark.parametrize("words", WANTED)
def test_the_search_index_holds_what_people_type(pages: dict[str, str], words: str) -> None:
    assert words in pages[WANTED[words]]
