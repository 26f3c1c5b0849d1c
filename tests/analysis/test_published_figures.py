"""FLOPs and bytes that others publish: the perf reports that TraceLens keeps next to its traces of an H100 and an
MI300X (tests/traces/*_perf_report_csvs in its repository, MIT). Where its definition differs from ours, the test says
how."""

from __future__ import annotations

import json
from math import prod

import pytest

from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import work_of

HALF, FLOAT = "c10::BFloat16", "float"
FLASH = "aten::_scaled_dot_product_flash_attention"

# operator, shapes, GFLOPS as FLOPs, "Data Moved" as bytes
PRODUCTS = [
    ("aten::mm", "[[8944,1024],[1024,2816]]", 51581550592, 74457088),
    ("aten::mm", "[[8944,2816],[2816,1024]]", 51581550592, 74457088),
    ("aten::mm", "[[8944,1024],[1024,1024]]", 18756927488, 38731776),
    ("aten::mm", "[[1,768],[768,1]]", 1536, 3074),
    ("aten::mm", "[[1,768],[768,768]]", 1179648, 1182720),
    ("aten::mm", "[[32768,2048],[2048,8192],[32768,8192]]", 1099511627776, 704643072),
    ("aten::mm", "[[32768,8192],[8192,2048],[32768,2048]]", 1099511627776, 704643072),
    ("aten::bmm", "[[16,5185,64],[16,64,5185]]", 55058892800, 881532960),
    ("aten::bmm", "[[16,5185,5185],[16,5185,64]]", 55058892800, 881532960),
    ("aten::bmm", "[[12,5,64],[12,64,5]]", 38400, 15960),
    ("aten::bmm", "[[1,5184,768],[1,768,1]]", 7962624, 7974528),
]
PRODUCTS_AND_SUMS = [
    ("[[1024],[8944,1024],[1024,1024]]", 18766086144, 38733824),
    ("[[1024],[5185,4096],[4096,1024]]", 43500241920, 61485056),
    ("[[4096],[5185,1024],[1024,4096]]", 43516170240, 61491200),
    ("[[768],[5,3072],[3072,768]]", 23596800, 4758528),
    ("[[1],[5184,1024],[1024,1]]", 10622016, 10629250),
    ("[[4],[5184,1024],[1024,4]]", 42488064, 10666504),
]
ELEMENTWISE = [
    ("aten::copy_", "[[16,16,559,64],[16,16,559,64],[]]", (HALF, HALF, "Scalar"), 34.9375),
    ("aten::copy_", "[[16,559,1024],[16,559,1024],[]]", (FLOAT, HALF, "Scalar"), 52.40625),
    ("aten::pow", "[[16,559,1024],[]]", (FLOAT, "Scalar"), 69.875),
    ("aten::silu", "[[16,559,2816]]", (HALF,), 96.078125),
    ("aten::add", "[[16,16,559,64],[16,16,559,64],[]]", (HALF, HALF, "Scalar"), 52.40625),
    ("aten::mul", "[[16,559,1024],[16,559,1]]", (FLOAT, FLOAT), 69.90911865234375),
    ("aten::mul", "[[16,16,559,64],[1,1,559,64]]", (HALF, HALF), 35.0057373046875),
    ("aten::mul", "[[1024],[16,559,1024]]", (HALF, HALF), 34.939453125),
    ("aten::mul", "[[1,5185,4096],[]]", (HALF, "double"), 81.01563262939453),
]


def modelled(name: str, shapes: str, types: tuple[str, ...] = (), inputs: tuple[str, ...] = ()) -> OpCost:
    """The work of a call; without types, all its tensors are bfloat16."""
    given = types or tuple(HALF if shape else "Scalar" for shape in json.loads(shapes))
    found = work_of(name, shapes, json.dumps(given), json.dumps(inputs) if inputs else "")
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "shapes", "flops", "moved"), PRODUCTS)
def test_matrix_products(name: str, shapes: str, flops: int, moved: int) -> None:
    found = modelled(name, shapes)
    assert (found.flops, found.bytes) == (flops, moved)


@pytest.mark.parametrize(("shapes", "flops", "moved"), PRODUCTS_AND_SUMS)
def test_products_with_a_bias_are_counted_without_its_additions(shapes: str, flops: int, moved: int) -> None:
    """TraceLens adds one for each number of the result; torch's counter and we do not."""
    found = modelled("aten::addmm", shapes)
    _, left, right = json.loads(shapes)
    assert found.flops == flops - left[0] * right[1]
    assert found.bytes == moved


def test_convolution() -> None:
    shapes = "[[1,3,1008,1008],[1024,3,14,14],[],[],[],[],[],[],[]]"
    types = (HALF, HALF, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar")
    inputs = ("", "", "", "[14, 14]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1")
    found = modelled("aten::convolution", shapes, types, inputs)
    assert (found.flops, found.bytes) == (6242697216, 17917440)


@pytest.mark.parametrize(
    ("shape", "causal", "flops", "moved"),
    [([8, 16, 4096, 128], "False", 1099511627776, 536870912), ([16, 16, 559, 64], "True", 10239377408, 73269248)],
)
def test_flash_attention(shape: list[int], causal: str, flops: int, moved: int) -> None:
    """Of a causal call TraceLens takes half of the score matrix, we the half with its diagonal."""
    inputs = ("", "", "", "0.", causal, "False", "0.125")
    found = modelled(FLASH, json.dumps([shape] * 3 + [[]] * 4), (HALF,) * 3 + ("Scalar",) * 4, inputs)
    diagonal = 4 * prod(shape) / 2 if causal == "True" else 0
    assert found.flops == flops + diagonal
    assert found.bytes == moved


@pytest.mark.parametrize(("name", "shapes", "types", "mebibytes"), ELEMENTWISE)
def test_bytes_of_elementwise_operators(name: str, shapes: str, types: tuple[str, ...], mebibytes: float) -> None:
    """Its FLOPs of these are one for each number; ours are none, because they never bind."""
    found = modelled(name, shapes, types)
    assert found.bytes == mebibytes * 2**20
    assert found.flops == 0
