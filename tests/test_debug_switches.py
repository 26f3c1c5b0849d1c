"""Which debugging variables are on, and where they act."""

from __future__ import annotations

import pytest

from steptime.debug_switches import DEBUG_SWITCHES, acting, switched_on


@pytest.mark.parametrize(
    ("name", "value", "on"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("CUDA_LAUNCH_BLOCKING", "0", False),
        ("CUDA_LAUNCH_BLOCKING", "", False),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", False),
        ("PYTHONMALLOC", "malloc_debug", True),
        ("PYTHONMALLOC", "malloc", False),
        ("PYTHONTRACEMALLOC", "25", True),
        ("HOME", "/root", False),
    ],
)
def test_a_switch_is_on_by_its_value(name: str, value: str, on: bool) -> None:
    assert switched_on({name: value, "PATH": "1"}) == (((name, value),) if on else ())


def test_what_switches_one_off_does_not_leave_it_on() -> None:
    assert switched_on({switch.name: switch.off for switch in DEBUG_SWITCHES}) == ()


@pytest.mark.parametrize(
    ("device", "backend", "names"),
    [
        ("cpu", None, ["PYTHONDEVMODE"]),
        ("cpu", "gloo", ["TORCH_DISTRIBUTED_DEBUG", "PYTHONDEVMODE"]),
        ("cuda", None, ["CUDA_LAUNCH_BLOCKING", "PYTHONDEVMODE"]),
        ("cuda", "nccl", ["CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_P2P_DISABLE", "PYTHONDEVMODE"]),
    ],
)
def test_a_switch_acts_where_its_device_or_backend_is(device: str, backend: str | None, names: list[str]) -> None:
    on = [(name, "1") for name in ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_P2P_DISABLE")]
    found = acting([*on, ("PYTHONDEVMODE", "1"), ("OF_ANOTHER_VERSION", "1")], device, backend)
    assert [switch.name for switch, _ in found] == names
