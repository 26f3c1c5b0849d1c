"""The ranks that hold a hung job up are named, whatever groups lie between them and those that wait."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from documents import text_of
from example_counts import examples
from hang.dumps import write
from hang.simulated import dumped, job

from steptime.hang.answer import answer_of
from steptime.hang.dump import read_dumps
from steptime.hang.triage import Fault, HangTriage, triage

pytestmark = pytest.mark.usefixtures("pickles_read_here")
PUBLIC = Path(os.environ.get("STEPTIME_DATA", Path(__file__).parents[3] / "shared" / "data")) / "flight_recorder"


def causes(found: HangTriage) -> set[int]:
    return {rank for stall in found.stalls if not stall.consequence for rank in stall.culprits}


@pytest.mark.parametrize("only_open", [False, True], ids=["whole rings", "open calls alone"])
@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("world", [2, 4, 8, 16, 64])
def test_one_rank_that_stands_still_is_the_only_cause(tmp_path: Path, world: int, kind: str, only_open: bool) -> None:
    for seed in range(examples(8)):
        chance = random.Random(f"{world} {kind} {seed}")
        faulty = chance.randrange(world)
        ranks, members = job(world, chance, {faulty: kind})
        groups = {"0": [*ranks], **members}
        folder = write(tmp_path / f"{seed}", dumped(ranks, only_open=only_open), groups, as_json=True)
        found = triage(read_dumps((str(folder),))[0], world)
        assert causes(found) == {faulty}, (seed, text_of(found, answer_of))
        if kind == "device" and found.stalls[0].fault is Fault.DEVICE:
            assert found.stalls[0].culprits == (faulty,)


@pytest.mark.parametrize("only_open", [False, True], ids=["whole rings", "open calls alone"])
@pytest.mark.parametrize("kinds", [("host", "host"), ("device", "device"), ("host", "device")])
@pytest.mark.parametrize("world", [4, 16, 64])
def test_of_two_ranks_that_stand_still_no_other_is_blamed(
    tmp_path: Path, world: int, kinds: tuple[str, str], only_open: bool
) -> None:
    """The one that stopped later may wait for the other by then: nothing tells that it would not have gone on."""
    for seed in range(examples(8)):
        chance = random.Random(f"{world} {kinds} {seed}")
        faults = dict(zip(chance.sample(range(world), 2), kinds, strict=True))
        ranks, members = job(world, chance, faults)
        groups = {"0": [*ranks], **members}
        folder = write(tmp_path / f"{seed}", dumped(ranks, only_open=only_open), groups, as_json=True)
        named = causes(triage(read_dumps((str(folder),))[0], world))
        assert named, (seed, faults)
        assert named <= faults.keys(), (seed, faults)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public dumps are not here")
@pytest.mark.parametrize(
    ("name", "ranks", "fault"), [("gpu_error_1st", {12, 14}, Fault.DEVICE), ("lock_gil_1st", {9, 14}, Fault.MISSING)]
)
def test_public_dumps_name_the_ranks_in_which_the_fault_was_injected(name: str, ranks: set[int], fault: Fault) -> None:
    found = triage(read_dumps((str(PUBLIC / name),))[0])
    assert causes(found) == ranks
    assert found.stalls[0].fault is fault
    first, second = sorted(ranks)
    assert f"The job waits for ranks {first} and {second}." in text_of(found, answer_of)
    assert "have called alike" not in "".join(stall.sentence for stall in found.stalls if not stall.consequence)
