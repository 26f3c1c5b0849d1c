"""Lines of a trial's process are a stranger's: what cannot be compared is left out, and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.recording.load import read_parity

SKETCH = [0.0] * 16


@pytest.mark.parametrize(
    "damage",
    [
        {"carried": [["4xmany", SKETCH]]},
        {"carried": [["4x8", [1.0]]]},
        {"ways": [["weight", "torch.float64", 1.0, []]]},
        {"updates": [["weight", [0.0] * 17]]},
        {"batches": [[[1.0, 2.0]]]},
        {"drew": "perhaps"},
    ],
)
def test_a_line_with_no_sketch_or_shape_is_left_out_and_said(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "parity.jsonl"
    good = {"step": 1, "carried": [["4x8", SKETCH]]}
    path.write_text("".join(json.dumps(line) + "\n" for line in (good, {"step": 2, **damage})))
    problems: list[str] = []
    parity = read_parity(path, problems)
    assert parity is not None
    assert parity.step.tolist() == [1]
    assert problems
