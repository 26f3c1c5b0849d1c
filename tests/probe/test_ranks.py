"""Ranks know themselves under every launcher, and profile the same steps without a collective of ours."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from steptime.probe.identity import LOCAL_RANK, MOST_TRACED, RANK, WORLD_SIZE, RankPlace, place, traces
from steptime.probe.schedule import Agreed, agree

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*RANK, *LOCAL_RANK, *WORLD_SIZE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, RankPlace()),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, RankPlace(3, 1, 8)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_NTASKS": "16"}, RankPlace(5, 2, 16)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}, RankPlace()),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, RankPlace(1, None, 2)),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            RankPlace(2, 0, 4),
        ),
        ({"RANK": "garbage"}, RankPlace()),
    ],
)
def test_a_rank_is_known_from_what_its_launcher_says(
    environment: dict[str, str], expected: RankPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place() == expected


def test_of_a_large_job_a_sample_traces_and_named_ranks_do() -> None:
    def traced(world: int, *wanted: str) -> list[int]:
        return [rank for rank in range(world) if traces(RankPlace(rank, 0, world), wanted)]

    assert traced(8, "auto") == list(range(8))
    sample = traced(1024, "auto")
    assert len(sample) == MOST_TRACED
    assert {0, 1023} <= set(sample)
    assert traced(1024, "7", "auto") == sorted({*sample, 7})
    assert traced(1024, "0", "7") == [0, 7]
    assert len(traced(1024, "all")) == 1024
    assert traces(RankPlace(), ("5",))


def test_all_ranks_take_the_step_that_the_first_one_names(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda rank: agree(str(tmp_path), Agreed(1, 20 + rank % 3, 5, True, 0)), range(64)))
    assert len(set(found)) == 1
    assert 20 <= found[0].step <= 22
    assert [path.name for path in tmp_path.iterdir()] == ["profile-1.json"]
    later = Agreed(3, 150, 5, False, 0)
    assert agree(str(tmp_path), later) == later


@pytest.mark.parametrize(
    "garbage",
    ["", "{}", "[1]", '{"step": null, "steps": 1, "stacks": true}', '{"step": 1, "steps": 1, "stacks": true}'],
)
def test_a_garbled_agreement_leaves_a_rank_to_itself(tmp_path: Path, garbage: str) -> None:
    (tmp_path / "profile-1.json").write_text(garbage)
    mine = Agreed(1, 24, 3, True, 20)
    assert agree(str(tmp_path), mine) == mine


def test_a_process_group_that_is_up_says_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under torch.multiprocessing.spawn, which tells its ranks nothing."""
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert place() == RankPlace(2, None, 4)
    group.is_initialized = lambda: False
    assert place() == RankPlace()
