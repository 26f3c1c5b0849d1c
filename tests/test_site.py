"""The built site: strict, and its search finds the right page for the words that people type.

Needs the dependency group `docs`, here or in .site (`make site`); skipped without."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from once import made_once
from patience import PATIENCE

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
            asked = subprocess.run(
                [each, "-c", "import lunr, material"], capture_output=True, timeout=PATIENCE, check=False
            )
            if asked.returncode == 0:
                return each
    pytest.skip("no mkdocs-material and lunr: make site")


@pytest.fixture(scope="module")
def site(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]

    def build(folder: Path) -> None:
        subprocess.run([*command, str(folder)], cwd=ROOT, check=True, timeout=PATIENCE)

    return made_once(tmp_path_factory, "site", build)


@pytest.fixture(scope="module")
def found(python: str, site: Path) -> dict[str, list[str]]:
    command = [python, str(ROOT / ".ci" / "search.py"), str(site), *WANTED]
    printed = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout
    return dict(zip(WANTED, json.loads(printed), strict=True))


@pytest.mark.parametrize("words", WANTED)
def test_the_search_finds_the_right_page(found: dict[str, list[str]], words: str) -> None:
    assert WANTED[words] in found[words][:FIRST]


def test_a_word_that_nobody_wrote_is_not_found(python: str, site: Path) -> None:
    command = [python, str(ROOT / ".ci" / "search.py"), str(site), "qwertzuiop"]
    printed = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout
    assert json.loads(printed) == [[]]


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site as a browser gets it."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Tells nobody what it serves."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


READ = """page => ({
    anchors: [...page.querySelectorAll('[id], a[name]')].map(each => each.id || each.name),
    links: [...page.querySelectorAll('a[href], link[href], script[src], img[src], source[srcset]')].map(
        each => each.href || each.src || new URL(each.srcset, page.baseURI).href
    ),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
})"""
EXCHANGED = f"""async url => {{
    const page = new DOMParser().parseFromString(await (await fetch(url)).text(), "text/html")
    page.head.prepend(Object.assign(page.createElement("base"), {{href: url}}))
    const read = ({READ})(page)
    document.querySelector("article").replaceWith(document.importNode(page.querySelector("article"), true))
    return {{...read, wide: ({READ})(document).wide}}
}}"""
"""Pages of a folder differ in their article alone: what is in it is laid out in the page of the first one, thirty times
as fast as opening each."""


def test_every_page_opens_on_a_phone_without_an_error_and_its_links_lead_somewhere(
    browser: Any, site: Path, address: str
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    # Each page would read the index of all of them; what is found with it is the matter of the tests above.
    context.route("**/workers/search*.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    tab, errors = context.new_page(), []
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    pages = sorted(each.relative_to(site).as_posix() for each in site.rglob("*.html") if each.name != "404.html")
    wanted: dict[str, set[str]] = {}
    known: dict[str, set[str]] = {}
    wide, folder = [], ""
    for name in pages:
        if folder and name.startswith(folder):
            read = tab.evaluate(EXCHANGED, f"{address}/{name}")
        else:
            tab.goto(f"{address}/{name}")
            read, folder = tab.evaluate(f"({READ})(document)"), name[: name.rfind("/") + 1]
        known[name] = set(read["anchors"])
        if read["wide"]:
            wide.append(name)
        for link in read["links"]:
            path, _, anchor = link.removeprefix(f"{address}/").partition("#")
            if link.startswith(address) and not path.startswith("?"):
                wanted.setdefault(unquote(path) or "index.html", set()).add(unquote(anchor))
    context.close()
    assert len(pages) > 100
    assert (errors, wide) == ([], [])
    assert [each for each in wanted if not (site / each).exists()] == []
    dead = {each: left for each, found in wanted.items() if each in known and (left := found - known[each] - {""})}
    assert dead == {}


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r": (\S+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)
    assert nav[:2] == ["index.md", "symptoms.md"], "what is wrong comes first"
    assert {each.name for each in (ROOT / "docs").glob("*.md")} <= set(nav)
    assert "\nstrict: true\n" in text
