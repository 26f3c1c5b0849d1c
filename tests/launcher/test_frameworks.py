"""Jobs of frameworks, bare and under `steptime run`: at each of their first 61 steps no object of theirs has a name
more or fewer in its `vars()`, and nothing of steptime's refers to one. What they do with their models is equal, too.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.faithful import zoo

pytest.importorskip("torch")

JOBS = {job.name: job for job in zoo.JOBS}
STEPS = set(range(61))
REACHED = {"discovery", "lines", "plain"}
"""States of the watch that a run of 61 steps comes to on any machine."""
NOBODY = hashlib.sha256(b"0").hexdigest()[:16]
"""What the jobs tell of an empty list: nothing of steptime's."""


@pytest.mark.parametrize("name", ["lightning", "trainer", "accelerate"])
def test_objects_of_a_framework_keep_their_names_and_nothing_of_ours_refers_to_them(name: str) -> None:
    job = JOBS[name]
    for package in job.needs:
        pytest.importorskip(package)
    with ThreadPoolExecutor(2) as both:
        bare, watched = both.map(lambda way: zoo.seen(job, way), (zoo.BARE, zoo.WATCHED))
    reported = {key: value for key, value in bare.reported.items() if key[0] == f"{name} objects of the job"}
    assert {step for _, step, part in reported if part == "held by steptime"} == STEPS
    assert not [key for key in bare.reported if key[2].startswith(zoo.RAISED)]
    assert {value for (_, _, part), value in reported.items() if part == "held by steptime"} == {NOBODY}
    assert watched.reported == bare.reported
    assert watched.streams["exit status"] == bare.streams["exit status"] == "0"
    assert set(watched.states[f"{name} objects of the job"]) >= REACHED
