"""A fact is declared by one field; what is read into it follows from that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from steptime.recording.fact_fields import fact, fact_fields


@dataclass(frozen=True)
class Size:
    of: str
    value: int
    iterator: int | None = None


@dataclass(frozen=True)
class Facts:
    path: str = ""
    last: Size | None = fact(None, "size")
    all: tuple[Size, ...] = fact((), "size")
    newest: tuple[Size, ...] = fact((), "size", "of")
    in_workers: tuple[Size, ...] = fact((), "size", in_workers=True)


WRITTEN = [Size("a", 1), Size("b", 2), "a note", Size("a", 3), Size("a", 4, iterator=7)]


def test_a_field_says_which_of_several_lines_count() -> None:
    assert {each.field: each.of(WRITTEN) for each in fact_fields(Facts)} == {
        "last": Size("a", 3),
        "all": (Size("a", 1), Size("b", 2), Size("a", 3)),
        "newest": (Size("a", 3), Size("b", 2)),
        "in_workers": (Size("a", 4, 7),),
    }


def test_where_nothing_was_written_a_field_has_its_default() -> None:
    nothing = Facts()
    assert all(each.of([]) == getattr(nothing, each.field) for each in fact_fields(Facts))


def test_a_fact_is_a_dataclass() -> None:
    @dataclass(frozen=True)
    class Wrong:
        size: int | None = fact(None, "size")

    with pytest.raises(ValueError, match="size is int"):
        fact_fields(Wrong)
