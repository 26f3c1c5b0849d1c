"""What is read as bytes lies in memory that is there: all else would end the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.line_work import one_hot  # noqa: E402
from steptime.probe.main_memory import readable, span  # noqa: E402
from steptime.probe.repeats import fingerprint  # noqa: E402
from steptime.probe.used import is_zero  # noqa: E402
from steptime.probe.weights import Weights  # noqa: E402

PROBE = Path(__file__).resolve().parents[2] / "src" / "steptime" / "probe"


def given_back() -> Any:
    """A parameter whose storage holds nothing between two uses, as FSDP has them."""
    tensor = torch.nn.Parameter(torch.ones(64, 64))
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_tensor_without_its_memory_is_never_read() -> None:
    gone = given_back()
    assert not readable(gone)
    assert fingerprint((gone,), long=True) is None
    assert one_hot(gone) == ()
    assert not is_zero(gone)
    weights = Weights()
    weights.add([gone])
    assert not weights.unchanged()


def test_one_that_has_given_its_memory_back_since_it_was_watched_is_no_longer_read() -> None:
    parameter, weights = torch.nn.Parameter(torch.ones(8)), Weights()
    weights.add([parameter])
    assert [weights.unchanged() for _ in range(2)] == [False, True]
    parameter.untyped_storage().resize_(0)
    assert not weights.unchanged()


def test_views_are_read_as_far_as_they_reach() -> None:
    whole = torch.zeros(6, 4)
    assert [span(each) for each in (whole, whole[:, 1], whole.T, whole[:0], whole[1:2].expand(3, 4))] == [
        24, 21, 24, 0, 4,
    ]  # fmt: skip
    part = whole[2:]
    part.untyped_storage().resize_(4 * 20)
    assert not readable(part)
    assert readable(part[:3])


def test_what_a_transform_wraps_and_what_is_elsewhere_is_not_read() -> None:
    seen: list[bool] = []

    def look(each: Any) -> Any:
        seen.append(readable(each))
        return each.sum()

    torch.func.vmap(look)(torch.ones(3, 4))
    torch.func.grad(look)(torch.ones(3))
    seen += map(readable, (torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse(), [1.0], None))
    assert not any(seen)


def test_only_one_module_reads_addresses() -> None:
    reading = [path.name for path in PROBE.rglob("*.py") if "string_at" in path.read_text(encoding="utf-8")]
    assert reading == ["main_memory.py"]
