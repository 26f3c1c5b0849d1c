"""Pages that a real Chromium has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary


@dataclass
class Sheet:
    """A page that is open, and what the browser said about it."""

    page: Any
    message: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heard = {
            "console": lambda message: self.message.append(message.text),
            "pageerror": lambda error: self.message.append(str(error)),
            "dialog": lambda dialog: self.message.append(dialog.message),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, hear in self.heard.items():
            self.page.on(event, hear)

    def leave(self) -> None:
        for event, hear in self.heard.items():
            self.page.remove_listener(event, hear)

    def words(self, locator: Any) -> str:
        """What is there, once it has been scrolled to: Chromium has no words for what is three screens away, as
        the page leaves its parts there undrawn. A space before a unit, at which no line breaks, is a space."""
        locator.scroll_into_view_if_needed()
        words: str = locator.inner_text()
        return words.replace("\u00a0", " ")

    def all_words(self, locator: Any) -> list[str]:
        return [self.words(each) for each in locator.all()]


class Tabs:
    """Tabs of one browser that are used again: a new one takes a process of its own, twice the work of the page in
    it."""

    of_browser: ClassVar[WeakKeyDictionary[Any, Tabs]] = WeakKeyDictionary()

    def __init__(self, browser: Any) -> None:
        self.context = browser.new_context()
        self.every: list[Any] = []
        self.free: list[Any] = []

    @classmethod
    def of(cls, browser: Any) -> Tabs:
        return cls.of_browser.get(browser) or cls.of_browser.setdefault(browser, cls(browser))

    def take(self, width: int, color_scheme: str) -> Any:
        if not self.free:
            self.free.append(self.context.new_page())
            self.every += self.free
        tab = self.free.pop()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(media="screen", color_scheme=color_scheme)
        return tab

    def give_back(self, tab: Any) -> None:
        tab.mouse.move(0, 0)
        tab.goto("about:blank")
        self.context.unroute_all()
        for each in self.context.pages:
            if each not in self.every:  # a page has opened it
                each.close()
        self.free.append(tab)


@contextmanager
def opening(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens pages as a reader does: from a file. Whatever the browser complains of fails the test at its end."""
    tabs, contexts, sheets = Tabs.of(browser), [], []
    file = folder / "report.html"

    def opened(text: str, width: int = 1280, color_scheme: str = "light", **options: Any) -> Sheet:
        """options: of a context of its own."""
        file.write_text(text, encoding="utf-8")
        if options:
            contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        sheet = Sheet(contexts[-1].new_page() if options else tabs.take(width, color_scheme))
        sheets.append(sheet)
        sheet.page.goto(file.as_uri())
        return sheet

    yield opened
    for sheet in sheets:
        sheet.leave()
        if sheet.page.context is tabs.context:
            tabs.give_back(sheet.page)
    for context in contexts:
        context.close()
    for sheet in sheets:
        assert sheet.message == []
        assert [url for url in sheet.requests if not url.startswith(("file:", "data:,", "blob:"))] == []
        assert sum(url.startswith("file:") for url in sheet.requests) == 1
