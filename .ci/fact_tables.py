"""Tables of the facts of a recording, for its page on the site: made from the dataclasses that read them."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from steptime.recording.fact_fields import FactField
from steptime.recording.recording import FACTS


def fact_tables() -> str:
    """Facts by their names, then the objects in them by their types, as Markdown."""
    names = dict.fromkeys(each.name for each in FACTS)
    known = [[each for each in FACTS if each.name == name] for name in names]
    lines = ["| fact | of several count | fields | meaning |", "|---|---|---|---|"]
    lines += [f"| `{of[0].name}` | {', '.join(map(_counting, of))} | {_described(of[0].kind)} |" for of in known]
    lines += ["| `note` | all | `text` str | Sentence for the report. |", ""]
    lines += ["| object | fields | meaning |", "|---|---|---|"]
    lines += [f"| {kind.__name__} | {_described(kind)} |" for kind in _inner([of[0].kind for of in known])]
    return "\n".join(lines) + "\n"


def _counting(fact: FactField) -> str:
    if fact.identity:
        return "the last of each " + ", ".join(f"`{name}`" for name in fact.identity)
    which = "the last" if fact.single else "all"
    return f"{which} with `iterator`" if fact.in_workers else which


def _described(kind: type[Any]) -> str:
    """Cells of fields and meaning. What its docstring says about errors is for those who make one."""
    hints = get_type_hints(kind)
    named = ", ".join(f"`{each.name}` {_words(hints[each.name])}" for each in fields(kind))
    meaning = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return f"{named} | {meaning}".replace("**", "^")


def _words(hint: Any) -> str:
    """A type as it is in JSON."""
    inner = get_args(hint)
    if NoneType in inner:
        return f"{_words(inner[0])} or null"
    if get_origin(hint) is dict:
        return f"object of {_words(inner[1])}"
    if inner and inner[-1] is ...:
        return f"list of {_words(inner[0])}"
    return f"({', '.join(map(_words, inner))})" if inner else str(hint.__name__)


def _inner(kinds: list[type[Any]]) -> list[type[Any]]:
    """Dataclasses in the fields of these, at any depth, in the order of their first mention."""
    found: dict[type[Any], None] = {}

    def look(hint: Any) -> None:
        for each in get_args(hint):
            look(each)
        if is_dataclass(hint) and isinstance(hint, type) and hint not in found:
            found[hint] = None
            for each in get_type_hints(hint).values():
                look(each)

    for kind in kinds:
        for each in get_type_hints(kind).values():
            look(each)
    return list(found)
