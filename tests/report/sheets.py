"""Pages that a real Chromium has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Sheet:
    """A page that is open, and what the browser said about it."""

    page: Any
    message: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def words(self, locator: Any) -> str:
        """What is there, once it has been scrolled to: Chromium has no words for what is three screens away, as
        the page leaves its parts there undrawn. A space before a unit, at which no line breaks, is a space."""
        locator.scroll_into_view_if_needed()
        words: str = locator.inner_text()
        return words.replace("\u00a0", " ")

    def all_words(self, locator: Any) -> list[str]:
        return [self.words(each) for each in locator.all()]


@contextmanager
def opening(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens pages as a reader does: from a file. Whatever the browser complains of fails the test at its end."""
    contexts = []
    sheets = []

    def opened(text: str, width: int = 1280, **options: Any) -> Sheet:
        file = folder / "report.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        sheet = Sheet(context.new_page())
        sheets.append(sheet)
        sheet.page.on("console", lambda message: sheet.message.append(message.text))
        sheet.page.on("pageerror", lambda error: sheet.message.append(str(error)))
        sheet.page.on("dialog", lambda dialog: sheet.message.append(dialog.message))
        sheet.page.on("request", lambda request: sheet.requests.append(request.url))
        sheet.page.goto(file.as_uri())
        return sheet

    yield opened
    for sheet in sheets:
        assert sheet.message == []
        assert [url for url in sheet.requests if not url.startswith(("file:", "data:,", "blob:"))] == []
        assert sum(url.startswith("file:") for url in sheet.requests) == 1
    for context in contexts:
        context.close()
