"""Changes that are switched on and off within a process: off undoes on, bit for bit, and blocks start with the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python
from probe.variants import JOBS, change, run

from steptime.changes import SWITCHABLE, VariantOptions, is_switchable
from steptime.trials.blocks import exercised, read_blocks

pytest.importorskip("torch")

CASES = {
    "autocast": {"dtype": "bfloat16"},
    "channels-last": {},
    "checkpointing": {"enabled": False},
    "compile": {"backend": "aot_eager"},
    "deterministic-off": {},
    "matmul-precision": {"precision": "high"},
    "optimizer": {"fused": True},
    "sdpa-backend": {"backend": "math"},
    "unchecked-distributions": {},
    "zero-grad": {},
}
MORE = [("autocast", {"dtype": "float16"}), ("optimizer", {"foreach": True})]
QUICK = {"autocast", "channels-last", "compile", "optimizer", "zero-grad"}
DEVICE_ONLY = {"matmul-precision", "sdpa-backend"}
"""Of which a CPU has the switch, and nothing that it changes."""
FELT = {
    "channels-last": "model.conv.weight",
    "deterministic-off": "deterministic",
    "matmul-precision": "matmul",
    "optimizer": "groups",
    "sdpa-backend": "sdpa",
    "unchecked-distributions": "checks",
}
"""What of the job's state shows that a change is on."""


def test_what_is_reported_to_be_switchable_is_tested_and_declared() -> None:
    from steptime.probe.changes.trial import APPLIERS, make_applier

    declared = {kind for kind in APPLIERS if make_applier({"kind": kind, "arguments": CASES.get(kind, {})}).switchable}
    assert set(CASES) == SWITCHABLE == declared
    assert not is_switchable(change("checkpointing"))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        pytest.param(kind, arguments, marks=() if kind in QUICK and (kind, arguments) not in MORE else pytest.mark.slow)
        for kind, arguments in (*CASES.items(), *MORE)
    ],
)
def test_after_off_the_job_is_bit_for_bit_what_it_would_be(kind: str, arguments: dict[str, object]) -> None:
    words = [python(), str(JOBS / "switched.py"), kind, json.dumps(arguments)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["losses"][0], found["losses"]
    assert found["exercised"] is (kind not in DEVICE_ONLY)
    assert kind not in FELT or FELT[kind] in found["felt"]


def test_one_process_runs_variants_in_blocks_that_start_with_the_same_weights(tmp_path: Path) -> None:
    switched = ((change("optimizer", fused=True),), (change("zero-grad"),), (change("autocast", dtype="bfloat16"),))
    options = VariantOptions(2000, warm_up=3, limit_seconds=120.0, switched=switched)
    variant = run(tmp_path, JOBS / "blocks_of_steps.py", variant=options)
    assert variant.status == 0
    record = read_blocks(tmp_path / "arm-0" / "blocks.jsonl")
    assert record.refused == ""
    assert record.begun == (0, 1, 2, 4)
    assert [exercised(each) for each in record.first] == [True, True, False, True]
    order = [(0, False), (1, False), (2, False), (0, False), (4, False), (0, True), (0, False)]
    first = [(each.block, each.control) for each in record.blocks[: len(order)]]
    assert first  # as many as a busy machine comes to
    assert first == order[: len(first)]
    assert all(0 < each.host_ns <= each.wall_ns and not each.apart for each in record.blocks)
    weights = [each["weight"] for each in variant.seen]
    kept = max(set(weights), key=weights.count)  # the one to which every block, and every first call, comes back
    assert weights.count(kept) >= len(record.blocks) + len(record.first)
    batches = [each["batch"] for each, weight in zip(variant.seen, weights, strict=True) if weight == kept]
    assert len(set(batches[1:])) == 1  # random streams, too: the first time they had not been kept yet


def test_a_change_that_cannot_be_taken_back_is_refused(tmp_path: Path) -> None:
    options = VariantOptions(400, warm_up=3, limit_seconds=120.0, switched=((change("gc-freeze"),),))
    variant = run(tmp_path, JOBS / "blocks_of_steps.py", variant=options)
    assert variant.status == 0
    assert read_blocks(tmp_path / "arm-0" / "blocks.jsonl").refused == "GarbageFreeze cannot be taken back"
