"""The next slow step is known from those before, and named once for all ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steptime.probe.catching import Occurrences, distance, next_one


@pytest.mark.parametrize(
    ("numbers", "apart"),
    [
        ([], 0),
        ([7], 0),
        ([151, 301], 0),
        ([151, 301, 451], 150),
        ([151, 301, 452], 0),
        ([40, 151, 301, 451], 150),
        ([151, 160, 301, 330, 451], 0),
        ([10, 151, 160, 301, 330, 451, 601], 150),
        ([8, 9, 10], 0),
        ([100, 200, 300, 400, 500, 600], 100),
    ],
)
def test_slow_steps_at_even_distances_have_a_period(numbers: list[int], apart: int) -> None:
    assert distance(numbers) == apart


def test_the_next_one_comes_late_enough_for_all_ranks() -> None:
    assert next_one(451, 150, ended=460, lead=100) == 601
    assert next_one(451, 150, ended=460, lead=141) == 751
    assert next_one(451, 150, ended=600, lead=0) == 601
    assert next_one(451, 150, ended=601, lead=0) == 751


def test_all_ranks_profile_the_step_that_the_first_one_names(tmp_path: Path) -> None:
    ranks = [Occurrences(str(tmp_path), [151, 301, 451] if rank % 2 else []) for rank in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda rank: ranks[rank].look(460 + rank, 100 + 20 * rank), range(16)))
    for rank in ranks:
        rank.look(470, 100)  # where they look a second later
    assert len({rank.step for rank in ranks}) == 1
    assert ranks[0].step in (601, 751)
    assert [path.name for path in tmp_path.iterdir()] == ["slow-step-1.json"]
    assert ranks[0].near(ranks[0].step - 3, 2)
    assert not ranks[0].near(ranks[0].step - 4, 2)


def test_one_after_the_other_is_named_and_no_more_than_a_few(tmp_path: Path) -> None:
    caught = [151, 301, 451]
    rank, found = Occurrences(str(tmp_path), caught), []
    for _ in range(5):
        rank.look(caught[-1] + 1, 10)
        found.append(rank.step)
        caught.append(caught[-1] + 150)
        rank.over()
    assert found == [601, 751, 901, 0, 0]
    assert not rank.near(10_000, 1000)


@pytest.mark.parametrize("garbage", ["", "[]", "{}", '{"step": null}', '{"step": 1e400}'])
def test_what_says_no_step_leaves_the_ranks_as_they_are(garbage: str, tmp_path: Path) -> None:
    (tmp_path / "slow-step-1.json").write_text(garbage, encoding="utf-8")
    rank = Occurrences(str(tmp_path), [151, 301, 451])
    rank.look(460, 10)
    assert rank.step == 0


def test_where_nothing_can_be_written_no_step_is_named(tmp_path: Path) -> None:
    rank = Occurrences(str(tmp_path / "gone"), [151, 301, 451])
    rank.look(460, 10)
    rank.look(470, 10)
    assert rank.step == 0
