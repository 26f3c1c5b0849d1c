"""Pages of the site that are not in docs/: the README as the first page, the files outside of docs/ that pages link to,
and what is made from the code: a page for each rule and fix, and the help of every verb.

A hook of mkdocs (see mkdocs.yml).
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from fact_tables import fact_tables
from mkdocs.structure.files import File

from steptime.advice.explain import site_pages
from steptime.advice.fixes import CATALOGUE as FIXES
from steptime.advice.rules import CATALOGUE as RULES
from steptime.cli.pages import page as commands

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
MADE = {**site_pages(), "commands.md": commands()}
PLACES = {
    **{each.code: f"rules/{each.name}.md" for each in RULES},
    **{each.code: f"fixes/{each.name}.md" for each in FIXES},
    "`steptime explain`": "rules/README.md",
    "`steptime VERB --help`": "commands.md",
}
"""What becomes a link on the site. In the repository it is the command that prints the same."""
LINKED = re.compile(
    r"^```.*?^```|^#[^\n]*|!?\[[^\]]*\]\([^)]*\)|`[^`\n]*`|\b(?:ST|RM)\d{3}\b",
    re.MULTILINE | re.DOTALL,
)
"""Code blocks, headings, links and inline code come first in the alternatives, so that codes in them stay."""


def on_files(files: Any, config: Any) -> Any:
    for name, text in MADE.items():
        files.append(File.generated(config, name, content=text))
    readme = LINK.sub(
        lambda link: outside(link[1], PurePosixPath("README.md")), (ROOT / "README.md").read_text("utf-8")
    )
    files.append(File.generated(config, "index.md", content=re.sub(r'(src|srcset)="docs/', r'\1="', readme)))
    waiting, wanted = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], set()
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / target).resolve() for target in LINK.findall(page.read_text("utf-8"))}
        found = {path for path in targets - wanted if path.is_file() and ROOT / "docs" not in path.parents}
        wanted |= found
        waiting += [path for path in found if path.suffix == ".md"]
    for path in sorted(wanted - {ROOT / "README.md"}):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"source/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = PurePosixPath(page.file.src_uri)
    if uri.parts[0] == "source":
        page.meta["search"] = {"exclude": True}  # tables of figures would be before the pages that people look for
    place = PurePosixPath(*uri.parts[1:]) if uri.parts[0] == "source" else PurePosixPath("docs") / uri
    up = "../" * (len(uri.parts) - 1)
    markdown = markdown.replace("<!-- facts -->", fact_tables())
    if uri.name != "index.md":
        markdown = LINK.sub(lambda link: outside(link[1], place, up), markdown)
    return markdown if uri.name == "CHANGELOG.md" else LINKED.sub(lambda found: linked(found[0], up), markdown)


def linked(text: str, up: str) -> str:
    """A code or a command as a link to its page; anything else unchanged. up: to the site's root."""
    return f"[{text}]({up}{PLACES[text]})" if text in PLACES else text


def outside(link: str, page: PurePosixPath, up: str = "") -> str:
    """A link as it leads on the site. page: who has it, from the repository's root; up: to the site's root."""
    target = (ROOT / page.parent / link).resolve().relative_to(ROOT)
    if target.parts[0] != "docs":
        return f"{up}index.md" if target == PurePosixPath("README.md") else f"{up}source/{target.as_posix()}"
    return f"{up}{PurePosixPath(*target.parts[1:])}"
