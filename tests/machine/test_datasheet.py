"""The table of datasheets: dense figures, found by the driver's names."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from steptime.machine.datasheet import DATASHEETS, interconnect_of, look_up


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
        ("AMD Instinct MI325X", 1307.4e12, 6e12),
        ("AMD Instinct MI350X", 2306.9e12, 8e12),
        ("AMD Instinct MI210", 181e12, 1.6384e12),
        ("AMD Instinct MI250X", 191.5e12, 1.6384e12),
        ("AMD Instinct MI250X / MI250", 191.5e12, 1.6384e12),
        ("NVIDIA A100-PG509-200", 312e12, 1.555e12),
        ("A100-SXM4-80GB", 312e12, 2.039e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 1.935e12),
        ("NVIDIA H100 NVL", 835.5e12, 3.9e12),
        ("NVIDIA GB200", 2500e12, 8e12),
        ("NVIDIA B200", 2250e12, 8e12),
        ("NVIDIA L40", 181.05e12, 0.864e12),
        ("NVIDIA A10", 125e12, 0.6e12),
        ("NVIDIA A10G", 70e12, 0.6e12),
        ("NVIDIA RTX A6000", 154.8e12, 0.768e12),
        ("NVIDIA GeForce RTX 3090", 71e12, 0.936e12),
        ("NVIDIA GeForce RTX 5090", 209.5e12, 1.792e12),
        ("Tesla V100-DGXS-32GB", None, 0.9e12),
        ("Tesla V100S-PCIE-32GB", None, 1.134e12),
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


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA T400 4GB",
        "NVIDIA GeForce GTX 1080",
        "AMD Radeon Graphics",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10-24Q",
        "cc9.4",
    ],
)
def test_a_device_that_the_table_does_not_have_is_not_guessed(name: str) -> None:
    assert look_up(name) is None


def test_the_devices_of_the_published_traces_are_known_or_reported_to_be_unknown(shared_data: Path) -> None:
    unknown = set()
    for path in sorted(shared_data.rglob("*.json*")):
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            names = re.findall(rb'"name": *"([^"]*)", *"totalGlobalMem"', stream.read(20_000))
        unknown |= {name.decode() for name in names if look_up(name.decode()) is None}
    assert unknown == {"AMD Radeon Graphics", ""}


def test_a_matrix_unit_is_at_least_as_fast_in_narrower_formats() -> None:
    for sheet in DATASHEETS:
        rates = [rate for rate in (sheet.float32, sheet.tf32, sheet.half, sheet.eight) if rate is not None]
        assert rates == sorted(rates), sheet.pattern
        assert sheet.eight is None or sheet.half is None or sheet.eight / sheet.half == pytest.approx(2, rel=0.05)


def test_no_figure_is_the_sparse_one() -> None:
    """A matrix unit does half precision at twice its rate of TF32: a sparse figure next to a dense one would show."""
    for sheet in DATASHEETS:
        assert sheet.title
        if sheet.half is not None:
            assert sheet.half / sheet.float32 <= 32
            assert sheet.tf32 is None or sheet.half / sheet.tf32 == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("name", "link", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", "NVLink", 450e9),
        ("NVIDIA H200", "NVLink", 450e9),
        ("NVIDIA B200", "NVLink", 900e9),
        ("NVIDIA A100-SXM4-80GB", "NVLink", 300e9),
        ("NVIDIA A800-SXM4-80GB", "NVLink", 200e9),
        ("Tesla V100-SXM2-32GB", "NVLink", 150e9),
        ("Tesla T4", "PCIe Gen3 x16", 16e9),
        ("NVIDIA L40S", "PCIe Gen4 x16", 32e9),
        ("AMD Instinct MI300X", "Infinity Fabric", 448e9),
    ],
)
def test_what_joins_devices_of_one_machine(name: str, link: str, rate: float) -> None:
    """Datasheets print both directions together; a bus bandwidth is of one."""
    found = interconnect_of(name)
    assert found is not None
    assert (found.name, found.rate) == (link, rate)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA A40",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "x",
    ],
)
def test_a_bridge_that_a_name_does_not_tell_is_not_assumed(name: str) -> None:
    assert interconnect_of(name) is None
