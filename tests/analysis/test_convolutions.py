"""Convolutions by hand, and those of which a trace holds shapes only."""

from __future__ import annotations

import json

import pytest

from steptime.analysis.op_cost.call import OpCost, Tensor
from steptime.analysis.op_cost.layers import from_output
from steptime.analysis.op_cost.op_cost import work_of


def tensor(*shape: int) -> Tensor:
    return Tensor(shape, "float", 4)


def backward(transposed: str, mask: str, shapes: list[list[int]]) -> OpCost | None:
    types = ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    inputs = ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", transposed, "[0, 0]", "1", mask]
    return work_of(
        "aten::convolution_backward", json.dumps([*shapes, *[[]] * 8]), json.dumps(types), json.dumps(inputs)
    )


def test_each_wanted_gradient_costs_a_product() -> None:
    """3x3, stride 2, 8 to 16 channels, 32x32 to 16x16, two images."""
    shapes = [[2, 16, 16, 16], [2, 8, 32, 32], [16, 8, 3, 3]]
    one = 2 * (2 * 16 * 16 * 16) * (8 * 9)
    gradient, image, weight = (4 * size for size in (2 * 16 * 256, 2 * 8 * 1024, 16 * 8 * 9))
    both, input_only, weight_only = (
        backward("False", mask, shapes)
        for mask in ("[True, True, False]", "[True, False, False]", "[False, True, False]")
    )
    assert both is not None
    assert input_only is not None
    assert weight_only is not None
    assert (both.flops, input_only.flops, weight_only.flops) == (2 * one, one, one)
    assert both.bytes == gradient + 2 * image + 2 * weight
    assert input_only.bytes == gradient + weight + image
    assert weight_only.bytes == gradient + image + weight


def test_a_transposed_convolution_is_counted_from_its_smaller_side() -> None:
    found = backward("True", "[True, True, False]", [[2, 8, 32, 32], [2, 16, 16, 16], [16, 8, 3, 3]])
    assert found is not None
    assert found.flops == 2 * 2 * (2 * 16 * 16 * 16) * (8 * 9)


@pytest.mark.parametrize("mask", ["", "null", "[True]x"])
def test_without_its_mask_a_gradient_is_not_guessed(mask: str) -> None:
    assert backward("False", mask, [[2, 16, 16, 16], [2, 8, 32, 32], [16, 8, 3, 3]]) is None


def test_three_shapes_tell_a_convolution_without_its_settings() -> None:
    found = from_output(tensor(2, 8, 32, 32), tensor(16, 4, 3, 3), tensor(2, 16, 16, 16))
    assert found.flops == 2 * (2 * 16 * 16 * 16) * (4 * 9)
    assert found.bytes == 4 * (2 * 8 * 1024 + 16 * 4 * 9 + 2 * 16 * 256)
    assert found.dimensions == (("channels in", 4), ("channels out", 8))


@pytest.mark.parametrize(
    ("image", "weight", "output"),
    [
        (tensor(2, 16, 16, 16), tensor(16, 8, 3, 3), tensor(2, 8, 32, 32)),  # transposed
        (tensor(2, 8, 16, 16), tensor(8, 8, 3, 3), tensor(2, 8, 32, 32)),  # transposed, and the channels do not tell
        (tensor(2, 8, 16, 16), tensor(8, 3, 3, 3), tensor(2, 8, 16, 16)),  # channels of nothing
    ],
)
def test_what_may_be_transposed_is_not_guessed(image: Tensor, weight: Tensor, output: Tensor) -> None:
    with pytest.raises(ValueError, match="no ordinary convolution"):
        from_output(image, weight, output)
