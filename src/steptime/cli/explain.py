"""`steptime explain CODE`: shows the page of a rule, a fix, a category or a message."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from steptime.answer.screen import notify
from steptime.errors import UsageError

MESSAGES = (Path(__file__).with_name("messages.md"), Path(__file__).parents[3] / "docs" / "messages.md")
"""Places of the messages' texts: in an installed wheel, and in a working tree."""


def codes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions: codes of rules and fixes, with their titles."""
    known = sorted((code, title) for code, _, title in _known())
    return [CompletionItem(code, help=title) for code, title in known if code.startswith(incomplete.upper())]


@click.command("explain")
@click.argument("code", required=False, shell_complete=codes)
def command(code: str | None) -> int:
    """Explain a finding or a fix (by its code or name), a category of the step (by its name), or a message (by the
    word in parentheses at its end). Without CODE, list the rules and the fixes.

    \b
    steptime explain ST101
    steptime explain overhead
    steptime explain no-torch
    """
    if code is None:
        notify("".join(f"{number}  {name:<28} {title}\n" for number, name, title in _known()))
        return 0
    _show(page_about(code))
    return 0


def _known() -> list[tuple[str, str, str]]:
    """(code, name, title) of the rules and the fixes."""
    from steptime.advice.engine import all_rules
    from steptime.advice.fixes import CATALOGUE

    rules = sorted(all_rules()[0], key=lambda rule: rule.code)
    known = [(each.code, each.name, each.page.title) for each in rules]
    return known + [(each.code, each.name, each.page.title) for each in CATALOGUE]


def page_about(code: str) -> str:
    """Page of a rule, a fix, a category or a message, as Markdown. Raises UsageError (unknown-code)."""
    from steptime.advice.explain import find_fix, find_rule, page_of

    found = find_rule(code) or find_fix(code)
    page = page_of(found) if found is not None else _category(code) or message_pages().get(code.strip("() ").lower())
    if page is None:
        raise _unknown(code, [word for each in _known() for word in each[:2]])
    return page


def _category(name: str) -> str:
    """Definition of a category's time; "" for any other name."""
    from steptime.analysis.categories import DEFINITIONS, Category

    category = {each.name: each for each in Category}.get(name.strip().upper())
    if category is None:
        return ""
    here, there = DEFINITIONS[category]
    lines = [f"# {category.name.lower()}: a category of the step", ""]
    lines += [f"On a CPU: the time in which {here}."] if here else ["A CPU step has none of it."]
    lines += ["", f"On an accelerator: the time in which {there}.", ""]
    lines += ["Each instant of a step belongs to exactly one category, so the categories sum to the step time."]
    return "\n".join(lines) + "\n"


def message_pages() -> dict[str, str]:
    """Paragraphs of docs/messages.md by slug, including headings."""
    path = next((path for path in MESSAGES if path.is_file()), None)
    text = path.read_text(encoding="utf-8") if path is not None else ""
    parts = re.split(r"^## (\S+)\s*$", text, flags=re.MULTILINE)
    return {slug: f"# {slug}\n\n{body.strip()}\n" for slug, body in zip(parts[1::2], parts[2::2], strict=True)}


ALIKE = 0.75
"""Least similarity of two words (difflib's ratio) for a suggestion: a letter or two of a word were mistyped."""


def _unknown(code: str, words: list[str]) -> UsageError:
    import difflib

    from steptime.analysis.categories import Category

    words = [word.lower() for word in [*words, *Category.__members__]] + [*message_pages()]
    near = difflib.get_close_matches(code.strip().lower(), words, n=1, cutoff=ALIKE)
    hint = f"did you mean {near[0].upper() if near[0].startswith('st') else near[0]}? " if near else ""
    return UsageError(
        "unknown-code", f"There is no rule, category or message {code!r}; {hint}steptime explain lists the rules."
    )


def _show(page: str) -> None:
    if not sys.stdout.isatty():
        notify(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=min(Console().width, 88)).print(Markdown(page))
