"""Real dumps of real gloo jobs (real/generate.py), some with ranks left out: who is missing is never cleared."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import text_of
from patience import PATIENCE

from steptime.cli.main import main
from steptime.errors import UsageError
from steptime.hang.answer import answer_of
from steptime.hang.dump import Dump, read_dumps
from steptime.hang.triage import Fault, Stall, triage

pytestmark = pytest.mark.usefixtures("pickles_read_here")

REAL = Path(__file__).parent / "real"
STORED = sorted(path.name for path in REAL.iterdir() if (path / "rank_2").exists())


@pytest.fixture(scope="module", params=["stored", pytest.param("made anew", marks=pytest.mark.slow)])
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "stored":
        return REAL
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("real") / "dumps"
    subprocess.run(
        [sys.executable, str(REAL / "generate.py"), str(folder)], check=True, timeout=PATIENCE, env={**os.environ}
    )
    return folder


def dumps(folder: Path, *ranks: int) -> tuple[Dump, ...]:
    """Of these ranks; of all that wrote one without any."""
    return read_dumps([str(folder / f"rank_{rank}") for rank in ranks] or [str(folder)])[0]


def cause(folder: Path, *ranks: int) -> Stall:
    return triage(dumps(folder, *ranks)).stalls[0]


@pytest.mark.parametrize("mode", STORED)
def test_no_rank_is_cleared_while_one_is_missing(jobs: Path, mode: str) -> None:
    there = [dump.rank for dump in dumps(jobs / mode)]
    for count in range(1, 3):
        for ranks in itertools.combinations(there, count):
            given = dumps(jobs / mode, *ranks)
            message = text_of(triage(given), answer_of)
            assert "have called alike" not in message
            missing = set(range(3)) - set(ranks)
            found = triage(given, world_size=3)
            assert set(found.absent) == missing
            assert f"no dump of {reported(missing)}." in text_of(found, answer_of)
            if not found.stalls or found.stalls[0].fault is Fault.NO_DUMP:
                assert f"first suspect{' is' if len(missing) == 1 else 's are'} {reported(missing)}" in text_of(
                    found, answer_of
                )
            else:
                assert all(stall.absent or stall.fault is Fault.NO_DUMP for stall in found.stalls[:1])


def reported(ranks: set[int]) -> str:
    ordered = sorted(ranks)
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {ordered[0]} and {ordered[1]}"


def test_a_rank_that_never_calls_is_named_with_all_dumps_and_without_its_own(jobs: Path) -> None:
    stall = cause(jobs / "never_calls")
    assert (stall.fault, stall.culprits, stall.waiting) == (Fault.MISSING, (1,), (0, 2))
    assert (stall.operation, stall.sequence, stall.group) == ("all_reduce", 5, "group default_pg")
    assert stall.evidence[0].startswith("rank 1's last call is barrier #4 of group default_pg, ended at")
    alone = cause(jobs / "never_calls", 0, 2)
    assert (alone.fault, alone.culprits, alone.waiting) == (Fault.NO_DUMP, (1,), (0, 2))
    assert "the first suspect is rank 1, without a dump" in alone.sentence
    both = cause(jobs / "never_calls", 1, 2)
    assert (both.fault, both.culprits, both.absent) == (Fault.MISSING, (1,), (0,))
    assert both.sentence.endswith("rank 1 has not called it; there is no dump of rank 0.")


def test_where_no_dump_names_the_others_it_is_asked_how_many_there_are(jobs: Path) -> None:
    stall = cause(jobs / "stopped", 0)
    assert (stall.fault, stall.culprits, stall.waiting) == (Fault.MEMBERS_UNKNOWN, (), (0,))
    assert any("--world-size N" in each for each in stall.evidence)
    named = triage(dumps(jobs / "stopped", 0), world_size=3)
    assert (named.stalls[0].fault, named.stalls[0].culprits, named.absent) == (Fault.NO_DUMP, (1, 2), (1, 2))
    with pytest.raises(UsageError, match="which mention rank 2"):
        triage(dumps(jobs / "stopped"), world_size=2)


def test_the_command_takes_the_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(REAL / "stopped" / "rank_0")
    assert main(["hang", path, "--world-size", "3"]) == 0
    assert "there is no dump of ranks 1 and 2" in capsys.readouterr().out
    assert main(["hang", str(REAL / "stopped"), "--world-size", "2"]) == 2
    assert "--world-size 2 contradicts the dumps, which mention rank 2" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["stopped", "died"])
def test_a_rank_that_stands_still_or_is_dead_is_the_first_suspect(jobs: Path, mode: str) -> None:
    found = triage(dumps(jobs / mode))
    assert found.absent == (1,)
    assert "The first suspect is rank 1" in text_of(found, answer_of) or "the first suspect is rank 1" in text_of(
        found, answer_of
    )


@pytest.mark.parametrize(
    ("mode", "fault", "odd", "place"),
    [
        ("other_operation", Fault.TYPE, "rank 1 called all_gather", 5),
        ("other_order", Fault.ORDER, "rank 1 called broadcast", 5),
        ("other_count", Fault.TYPE, "rank 1 called barrier", 7),
    ],
)
def test_a_rank_that_calls_something_else_is_named(jobs: Path, mode: str, fault: Fault, odd: str, place: int) -> None:
    stall = cause(jobs / mode)
    assert (stall.fault, stall.culprits, stall.waiting, stall.sequence) == (fault, (1,), (0, 2), place)
    assert any(each.startswith(odd) for each in stall.evidence)
    two = cause(jobs / mode, 1, 2)
    assert (two.fault, two.culprits, two.absent) == (fault, (1, 2), (0,))
    assert " different o" in two.sentence
    assert cause(jobs / mode, 0, 2).culprits == (1,)


def test_ranks_that_wait_in_two_groups_are_a_circle_and_who_is_not_in_one_is_not_blamed_for_it(jobs: Path) -> None:
    found = triage(dumps(jobs / "other_group"))
    assert {(stall.group, stall.culprits) for stall in found.stalls} == {("group 1", (1,)), ("group default_pg", (0,))}
    first = cause(jobs / "other_group", 0, 2)
    assert (first.fault, first.group, first.culprits) == (Fault.MEMBERS_UNKNOWN, "group 1", ())
    assert first.evidence[0].startswith("rank 2 called nothing in this group")


def test_what_no_dump_holds_is_not_laid_to_the_network_alone(jobs: Path) -> None:
    roots = cause(jobs / "other_root")
    assert (roots.fault, roots.waiting) == (Fault.NOT_DONE, (0, 2))
    assert "their roots differ, or" in roots.sentence
    late = cause(jobs / "straggler")
    assert (late.fault, late.waiting) == (Fault.NOT_DONE, (0,))
    assert "has ended on ranks 1 and 2: rank 0 was dumped earlier, or" in late.sentence
    assert triage(dumps(jobs / "straggler", 1, 2)).stalls == ()
    assert triage(dumps(jobs / "other_reduction")).stalls == ()


@pytest.mark.parametrize(("mode", "fault"), [("other_size", Fault.SIZE), ("other_type", Fault.ELEMENT_TYPE)])
def test_what_gloo_ends_a_process_for_is_reported_by_who_lives(jobs: Path, mode: str, fault: Fault) -> None:
    """Which of the three finds the message too long, and aborts, is a matter of time."""
    found = triage(dumps(jobs / mode))
    if 1 in found.ranks:
        assert (found.stalls[0].fault, found.stalls[0].absent) == (fault, found.absent)
    else:
        assert found.absent == (1,)
        assert "first suspect is rank 1" in text_of(found, answer_of)
