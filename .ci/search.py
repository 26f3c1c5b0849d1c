"""Pages that the search of a built site finds for some words, best first: the index of mkdocs-material, ranked by lunr.

    python .ci/search.py SITE WORDS...

Prints a list of pages for each WORDS, as JSON.
"""

import json
import sys
from pathlib import Path

from lunr import lunr

TITLE_BOOST = 1000
"""What mkdocs-material gives to a word in a title (its template of the search worker)."""


def found(index: Path, words: list[str]) -> list[list[str]]:
    """For each query the pages with all of its words, each page once."""
    sections = json.loads(index.read_text("utf-8"))["docs"]
    fields = [{"field_name": "title", "boost": TITLE_BOOST}, "text"]
    searched = lunr(ref="location", fields=fields, documents=sections)
    results = []
    for query in words:
        hits = searched.search(" ".join(f"+{word}" for word in query.split()))
        results.append(list(dict.fromkeys(hit["ref"].partition("#")[0] for hit in hits)))
    return results


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found(Path(sys.argv[1], "search", "search_index.json"), sys.argv[2:])) + "\n")
