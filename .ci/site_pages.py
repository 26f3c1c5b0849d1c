"""What the site has beside docs/: the README as its first page, and the files outside of docs/ that pages link to.

A hook of mkdocs (see mkdocs.yml).
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")


def on_files(files: Any, config: Any) -> Any:
    text = (ROOT / "README.md").read_text("utf-8")
    readme = LINK.sub(lambda link: outside(link[1], PurePosixPath("README.md")), text)
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
        page.meta["search"] = {"exclude": True}  # tables of figures would stand before the pages that people look for
    place = PurePosixPath(*uri.parts[1:]) if uri.parts[0] == "source" else PurePosixPath("docs") / uri
    up = "../" * (len(uri.parts) - 1)
    return markdown if uri.name == "index.md" else LINK.sub(lambda link: outside(link[1], place, up), markdown)


def outside(link: str, page: PurePosixPath, up: str = "") -> str:
    """A link as it leads on the site. page: who has it, from the repository's root; up: to the site's root."""
    target = (ROOT / page.parent / link).resolve().relative_to(ROOT)
    if target.parts[0] != "docs":
        return f"{up}index.md" if target == PurePosixPath("README.md") else f"{up}source/{target.as_posix()}"
    return f"{up}{PurePosixPath(*target.parts[1:])}"
