"""Declarations of facts: each is a field of `Process` (`recording`), and what reads it goes by the declaration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

Value = TypeVar("Value")


def fact(
    default: Value, name: str, *identity: str, in_workers: bool = False, reason: str = "", in_trace: str = ""
) -> Value:
    """Declares a field of `Process` that holds the lines of facts.jsonl with `"fact": name`, decoded as the field's
    type. default: None keeps the last line, () all lines; of lines equal in the fields `identity`, the last stays.
    in_workers: True for the lines with an `iterator`; without it, the lines that have none. reason, in_trace: sentences
    on why the fact may be missing (see `evidence.absent`)."""
    absence = {"reason": reason, "in_trace": in_trace or reason} if reason else {}
    return field(default=default, metadata={"fact": name, "identity": identity, "in_workers": in_workers, **absence})


@dataclass(frozen=True, slots=True)
class FactField:
    """Declaration of a fact. field: name of the field of `Process`; name: the fact's name in facts.jsonl; kind: its
    dataclass; single: True if only the last line counts; identity: fields whose equality makes a line replace an
    earlier one, () for none; in_workers: True for lines of loader workers."""

    field: str
    name: str
    kind: type[Any]
    single: bool
    identity: tuple[str, ...]
    in_workers: bool

    def of(self, found: Iterable[object]) -> Any:
        """Value of the field. found: all facts in the order in which they were written."""
        facts = [each for each in found if isinstance(each, self.kind)]
        if hasattr(self.kind, "iterator"):
            facts = [each for each in facts if (each.iterator is not None) is self.in_workers]
        if self.single:
            return facts[-1] if facts else None
        if self.identity:
            facts = list({tuple(getattr(each, name) for name in self.identity): each for each in facts}.values())
        return tuple(facts)


def fact_fields(kind: type[Any]) -> tuple[FactField, ...]:
    """Facts that a dataclass declares, in its order. Raises ValueError for an annotation that is neither `Facts | None`
    nor `tuple[Facts, ...]`."""
    hints, found = get_type_hints(kind), []
    for each in fields(kind):
        if name := each.metadata.get("fact"):
            inner = [part for part in get_args(hints[each.name]) if isinstance(part, type) and is_dataclass(part)]
            if len(inner) != 1:
                raise ValueError(f"{each.name} is {each.type}, where a fact's dataclass was expected")
            single, meta = each.default is None, each.metadata
            found.append(FactField(each.name, name, inner[0], single, meta["identity"], meta["in_workers"]))
    return tuple(found)
