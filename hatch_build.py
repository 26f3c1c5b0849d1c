"""Metadata that depends on where the project is published: its addresses, and a README whose links work on the index.

The release workflow names the repository (STEPTIME_REPOSITORY, a URL) and the tag (STEPTIME_REF). A build without them,
as in a clone, claims no address.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"""((?:\]\(|\b(?:src|srcset|href)="))(?!https?:|\#|mailto:)([^)"\s]+)""")
PICTURES = (".png", ".svg", ".gif", ".webp")


class PublishedMetadata(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, object]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository, ref = os.environ.get("STEPTIME_REPOSITORY", "").rstrip("/"), os.environ.get("STEPTIME_REF", "main")
        if repository:
            readme = with_addresses(readme, repository, ref)
            metadata["urls"] = {
                "Homepage": repository,
                "Documentation": f"{repository}/tree/{ref}/docs",
                "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_addresses(readme: str, repository: str, ref: str) -> str:
    """The text with links to files of the repository as addresses: pictures as files, everything else as pages."""

    def address(found: "re.Match[str]") -> str:
        kind = "raw" if found[2].partition("#")[0].endswith(PICTURES) else "blob"
        return f"{found[1]}{repository}/{kind}/{ref}/{found[2].removeprefix('./')}"

    return RELATIVE.sub(address, readme)
