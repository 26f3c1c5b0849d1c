"""Frame of every page: one file that opens offline anywhere, a style, our one script, and a policy that lets nothing
else run; and an answer in it. Pages only display: every figure on them is the answer's.

One law: what strangers wrote (names of kernels, paths, lines of source) is text. The templates escape everything, and
the page's own policy lets nothing run but our one script and asks no network for anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import jinja2
import msgspec
from markupsafe import Markup

from steptime._version import __version__
from steptime.analysis.categories import Category, definition
from steptime.answer.answer import Answer, Section
from steptime.answer.json import as_json
from steptime.answer.printable import one_line, printable
from steptime.answer.tables import Table

SCRIPTS = ("page.js", "steps.js", "flame.js", "events.js", "perfetto.js", "timeline.js")
"""Parts of the one script, in the order in which they run."""
STYLES = ("style.css", "parts.css")
ROWS = 12
"""Rows of a table or a list in a notebook."""
_TONES = {category.name.lower() for category in Category}
_BOUNDS = {"memory", "compute", "latency"}
"""Categories and bounds that have a colour of their own; whatever else a report may name shares one."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|min|h|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP/s)(?!\w))")
"""The space before a unit: a line does not end there."""
_DANGEROUS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""Text that could end a script element, or a line of script: JSON may spell it otherwise."""


def whole(template: str, *, title: str, data: str, **names: object) -> str:
    """HTML page. template: one that extends frame.html. data: JSON that the page carries. names: template variables."""
    style, script = "\n".join(map(asset, STYLES)), "\n".join(map(asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template).render(
        title=title, policy=policy, style=Markup(style), script=Markup(script), version=__version__,
        data=Markup(data.translate(_DANGEROUS)), **names,
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()


def as_page(answer: Answer) -> str:
    every = (*answer.parts, *answer.details())
    return whole(
        "answer.html",
        title=one_line(answer.title),
        data=msgspec.json.format(as_json(answer).encode(), indent=-1).decode(),
        answer=answer,
        sections=tuple(part for part in every if isinstance(part, Section) and part.items),
        tables=tuple(part for part in every if isinstance(part, Table) and part.rows),
    )


def as_piece(answer: Answer) -> str:
    """Answer for a notebook: HTML without script, style sheet and requests, because other people's page contains it."""
    parts = tuple(part for part in answer.parts if (part.items if isinstance(part, Section) else part.rows))
    piece = _environment().get_template("notebook.html").render(answer=answer, parts=parts, rows=ROWS)
    return piece.encode("utf-8", "backslashreplace").decode()


def escaping(read: Callable[[str], str | None]) -> jinja2.Environment:
    """Template environment that escapes strangers' strings, removes characters that no screen should get, and treats a
    missing name as an error. read: function from a template's name to its text."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = escaping(asset)
    environment.filters["raw"] = lambda value: value if isinstance(value, str) else f"{value:.10g}"
    environment.filters["unbroken"] = lambda text: _UNIT.sub("\u00a0", text)
    environment.filters["percent"] = lambda value: f"{value:.2f}%"
    environment.filters["tone"] = lambda name: f"tone-{name}" if name in _TONES else "tone-other"
    environment.filters["definition"] = definition
    environment.filters["bound"] = lambda name: name if name in _BOUNDS else "other"
    return environment


@cache
def asset(name: str) -> str:
    """Text of a file of this folder: a template, a style, a script."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Hash by which a content policy allows a piece of script or style of the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
