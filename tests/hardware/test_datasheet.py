"""The table of datasheets: dense figures, found by the driver's names."""

from __future__ import annotations

import pytest

from steptime.hardware.datasheet import DATASHEETS, look_up


@pytest.mark.parametrize(
    ("name", "bfloat16", "copy"),
    [
        ("NVIDIA H200", 989.5e12, 4.8e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12, 3.35e12),
        ("NVIDIA H100 PCIe", 756.5e12, 2.0e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 2.039e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 1.555e12),
        ("NVIDIA A100-PCIE-40GB", 312e12, 1.555e12),
        ("Tesla V100-SXM2-32GB", None, 0.9e12),
        ("Tesla T4", None, 0.3e12),
        ("NVIDIA L4", 121e12, 0.3e12),
        ("NVIDIA L40S", 362e12, 0.864e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 1.008e12),
        ("AMD Instinct MI300X", 1307.4e12, 5.3e12),
    ],
)
def test_a_device_is_found_by_the_name_that_its_driver_gives(name: str, bfloat16: float | None, copy: float) -> None:
    machine = look_up(name)
    assert machine is not None
    assert machine.matrix_rate("bfloat16") == (None if bfloat16 is None else pytest.approx(bfloat16))
    assert machine.copy is not None
    assert machine.copy.value == pytest.approx(copy)
    assert not machine.measured
    assert "datasheet" in machine.source.lower() or "data" in machine.source.lower() or "paper" in machine.source


@pytest.mark.parametrize("name", ["", "cpu", "NVIDIA T400 4GB", "NVIDIA GeForce GTX 1080", "AMD Radeon Graphics"])
def test_a_device_that_the_table_does_not_have_is_not_guessed(name: str) -> None:
    assert look_up(name) is None


def test_no_figure_is_the_sparse_one() -> None:
    """A matrix unit does half precision at twice its rate of TF32: a sparse figure beside a dense one would show."""
    for sheet in DATASHEETS:
        assert sheet.title
        if sheet.half is not None:
            assert sheet.half / sheet.float32 <= 30
            assert sheet.tf32 is None or sheet.half / sheet.tf32 == pytest.approx(2, rel=0.02)
