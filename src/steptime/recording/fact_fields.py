"""Declarations of facts: each is a field of `Process` (`recording`), and what reads it goes by the declaration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

Value = TypeVar("Value")


def fact(
    default: Value, name: str, *identity: str, in_workers: bool = False, reason: str = "", in_trace: str = ""
) -> Value:
    """Field that holds the lines of facts.jsonl with `"fact": name`, as the dataclass of its annotation. default: None
    for the last line, () for all; of those that are equal in the fields `identity`, the last. in_workers: those with an
    `iterator`, the other field of that type has those without. reason, in_trace: as of `evidence.absent`, for rules."""
    absence = {"reason": reason, "in_trace": in_trace or reason} if reason else {}
    return field(default=default, metadata={"fact": name, "identity": identity, "in_workers": in_workers, **absence})


@dataclass(frozen=True, slots=True)
class FactField:
    """A declared fact. field: of `Process`; name: in facts.jsonl; kind: its dataclass; single: the last one counts;
    identity: fields of which equal ones replace each other, () for none."""

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
