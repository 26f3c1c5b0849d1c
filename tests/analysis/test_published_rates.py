"""Rates of real kernels that others publish: TraceLens reports on the traces of test_published_figures.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.analysis.roofline import KernelUse, Roofline, draw
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.machine.datasheet import look_up
from steptime.trace.reader import read


def drawn(path: Path, device: str) -> Roofline:
    trace = read(path)
    boundaries = steps_of(trace)
    return draw(step_context(trace, boundaries, machine=look_up(device)))


def rate(group: KernelUse) -> float:
    """TFLOP/s while the kernel ran."""
    assert group.flops is not None
    return group.flops / group.duration / 1e3


def test_products_and_attention_on_mi300x(shared_data: Path) -> None:
    roofline = drawn(shared_data / "tracelens/torch_compile_triton/trace.json.gz", "AMD Instinct MI300X")
    found = {(each.operator, each.shapes): each for each in roofline.groups}
    single = found["aten::mm", "[[32768, 8192], [8192, 2048], [32768, 2048]]"]
    attention = found["aten::_flash_attention_forward", "[[8, 4096, 16, 128], [8, 4096, 16, 128], "
                      "[8, 4096, 16, 128], [], [], [], [], [], [], [], [], [], [], [], []]"]  # fmt: skip
    assert rate(single) == pytest.approx(540.6461176508788, rel=1e-4)
    assert rate(attention) == pytest.approx(298.4957253368845, rel=1e-4)
    assert (single.bound, single.tensor_cores, attention.bound) == ("compute", True, "compute")
    assert single.at_roofline == pytest.approx(1099511627776 / 1307.4e12 * 1e9)
    assert {each.bound for each in roofline.groups if each.operator.startswith("triton_")} == {"memory"}
    assert roofline.modelled == 1


def test_products_and_attention_on_h100(shared_data: Path) -> None:
    """Its rates include the memset that cuBLAS issues before a product (0.8 us each), ours are the kernel's."""
    name = "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    roofline = drawn(shared_data / name, "NVIDIA H100 80GB HBM3")
    found = {each.operator: each for each in reversed(roofline.groups)}
    product, attention = found["aten::mm"], found["aten::_flash_attention_forward"]
    assert product.duration == pytest.approx(4_015_501)
    with_memset = (product.flops or 0) / (product.duration + 39_750) / 1e3
    assert with_memset == pytest.approx(610.6657102342793, rel=1e-3)
    assert rate(attention) * 559 / 560 == pytest.approx(90.28922364189224, rel=1e-3)
    assert (product.bound, attention.bound) == ("compute", "memory")
    assert product.tensor_cores


def test_odd_sequence_lengths_are_named_as_what_misses_the_tile(shared_data: Path) -> None:
    name = "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz"
    roofline = drawn(shared_data / name, "NVIDIA H100 80GB HBM3")
    products = [each for each in roofline.groups if each.operator == "aten::bmm"][:2]
    assert [each.dimensions for each in products] == [("n = 5185",), ("k = 5185",)]
    assert roofline.modelled > 0.99


def test_batch_norm_with_a_block_for_each_channel_does_not_fill_a_large_device(shared_data: Path) -> None:
    """64 channels on 304 compute units: 5 % of the bandwidth, and no faster memory would help."""
    name = "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz"
    roofline = drawn(shared_data / name, "AMD Instinct MI300X")
    slow = max(
        (each for each in roofline.groups if each.operator == "aten::native_batch_norm_backward"),
        key=lambda each: each.duration,
    )
    assert slow.shapes.startswith("[[512, 64, 56, 56]")
    assert slow.at_roofline is not None
    assert slow.at_roofline / slow.duration < 0.06
    assert slow.bound == "latency"


@pytest.mark.parametrize("workers", [0, 4])
def test_flops_of_a_training_step_of_resnet50(shared_data: Path, workers: int) -> None:
    """torchvision documents 4.09 billion multiply-adds of an image of 224 by 224. A step on 32 of them does these three
    times, but for the gradient of the images themselves. The trace is of 2021: shapes without strides."""
    roofline = drawn(shared_data / f"kineto/resnet50_workers{workers}.pt.trace.json.gz", "Tesla V100-DGXS-32GB")
    first = 2 * 32 * 64 * 112 * 112 * 3 * 7 * 7
    assert roofline.flops == pytest.approx(3 * 32 * 2 * 4.09e9 - first, rel=1e-3)
    assert roofline.modelled > 0.94
    assert roofline.tensor_cores == 0
    assert roofline.dtype == "float32"
