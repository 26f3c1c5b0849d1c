"""Who can have opened a range, without asking."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.objects import (  # noqa: E402
    ConstructionObserver,
    ObjectNumbers,
    Owners,
)


class Named:
    pass


class Nameless:
    __slots__ = ()


def test_one_of_a_name_is_the_only_one_until_there_is_another() -> None:
    reported: list[int] = []
    owners = Owners(lambda: reported.append(1))
    first, second = Named(), Named()
    owners.add(first)
    assert owners.only(first)
    owners.add(second)
    assert not owners.only(first)
    assert not owners.only(second)
    assert len(reported) == 2


def test_what_is_gone_does_not_count() -> None:
    owners = Owners(lambda: None)
    first, second = Named(), Named()
    owners.add(first)
    owners.add(second)
    del second
    gc.collect()
    assert owners.only(first)


def test_what_was_made_before_us_is_never_taken_for_the_only_one() -> None:
    assert not Owners(lambda: None).only(Named())


def test_what_cannot_be_counted_makes_nobody_the_only_one() -> None:
    owners = Owners(lambda: None)
    first = Named()
    owners.add(first)
    owners.add(Nameless())
    assert not owners.only(first)


def test_every_optimizer_is_reported_of_and_the_class_is_restored() -> None:
    before = dict(vars(torch.optim.Optimizer))
    made: list[Any] = []
    watch = ConstructionObserver(made.append)
    watch.install()
    try:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
        others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    finally:
        watch.remove()
    assert [any(each is one for one in made) for each in (optimizer, *others)] == [True] * 3
    assert dict(vars(torch.optim.Optimizer)) == before


def test_an_object_in_the_place_of_one_that_is_gone_has_its_number() -> None:
    class Owner:
        pass

    numbers = ObjectNumbers()
    first, other = Owner(), Owner()
    assert numbers.in_place(first, "line 7") == (1, 1)
    assert numbers.in_place(other, "line 7") == (2, 1), "both are there"
    assert numbers.in_place(Owner(), "line 9") == (3, 1)
    del other
    second = Owner()
    assert numbers.in_place(second, "line 7") == (2, 2)
    assert numbers.of(second) == (2, False)
    assert numbers.of(first) == (1, False)
