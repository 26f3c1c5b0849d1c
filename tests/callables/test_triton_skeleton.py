"""A chain as one kernel in `triton.language`: its text, run program by program, gives what the chain gives.

Where Triton is installed its own interpreter runs the text, else the few functions of `triton.language` below."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from preloading import python

from steptime.analysis.op_cost.call import parse
from steptime.callables.bench import Bench, BenchOptions, BenchSetting, Contender, Standing
from steptime.callables.kernel import ChainLink, KernelStudy, OperatorChain
from steptime.callables.kernel_answer import answer_of
from steptime.callables.triton_skeleton import NoSkeletonError
from steptime.cli.main import main
from steptime.quantities import Estimate
from steptime.trace.compile_logs import CompiledKernel


class Pointer:
    """An address of Triton's: a tensor and places in it."""

    def __init__(self, tensor: torch.Tensor, at: Any = 0) -> None:
        self.tensor, self.at = tensor.view(-1), at

    def __add__(self, further: Any) -> Pointer:
        return Pointer(self.tensor, self.at + further)


class Kernel:
    """What `triton.jit` makes of a function, one program after the other."""

    def __init__(self, function: Callable[..., None], language: Any) -> None:
        self.function, self.language = function, language

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*tensors: torch.Tensor) -> None:
            for number in range(grid[0]):
                self.language.program_id = lambda axis, number=number: number
                self.function(*map(Pointer, tensors))

        return launch


def load(pointer: Pointer, mask: torch.Tensor, other: float) -> torch.Tensor:
    at, inside = torch.broadcast_tensors(pointer.at, mask)
    return torch.where(inside, pointer.tensor[torch.where(inside, at, 0)], other)


def store(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor) -> None:
    at, inside = torch.broadcast_tensors(pointer.at, mask)
    assert value.shape == at.shape, "Triton stores blocks of one shape"
    pointer.tensor[at[inside]] = value[inside].to(pointer.tensor.dtype)


def atomic_add(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor) -> None:
    at, inside = torch.broadcast_tensors(pointer.at, mask)
    assert value.shape == at.shape
    pointer.tensor.index_add_(0, at[inside], value[inside].to(pointer.tensor.dtype))


def number_or(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda one, two: function(one, torch.as_tensor(two, dtype=one.dtype))


def language() -> Any:
    names = ["exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "sin", "cos", "abs", "where"]
    return SimpleNamespace(
        **{name: getattr(torch, name) for name in names},
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        load=load, store=store, atomic_add=atomic_add, arange=torch.arange, maximum=number_or(torch.maximum),
        minimum=number_or(torch.minimum), int1=torch.bool, int32=torch.int32, bfloat16=torch.bfloat16,
        float16=torch.float16, float32=torch.float32, float64=torch.float64,
        sum=lambda value, axis, keep_dims: value.sum(axis, keep_dims),
        max=lambda value, axis, keep_dims: value.amax(axis, keep_dims),
        min=lambda value, axis, keep_dims: value.amin(axis, keep_dims),
    )  # fmt: skip


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is None:
        made, names = ModuleType("triton"), language()
        made.jit = lambda function: Kernel(function, names)  # type: ignore[attr-defined]
        made.language = names  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "triton", made)
        monkeypatch.setitem(sys.modules, "triton.language", names)


def link(name: str, shapes: list[Any], inputs: list[str] | None = None, dtype: str = "float") -> ChainLink:
    types = [("bool" if name == "masked_fill" and at == 1 else dtype) if each is not None and each != [] else "Scalar"
             for at, each in enumerate(shapes)]  # fmt: skip
    shapes = [each or [] for each in shapes]
    return ChainLink(name, parse(json.dumps(shapes), json.dumps(types), json.dumps(inputs or [""] * len(shapes))))


ROWS = [6, 5]
CHAINS = {
    "activation": (
        link("mul", [ROWS, [5]]), link("gelu", [ROWS, None], ["", "tanh"]),
        link("add", [ROWS, ROWS, None], ["", "", "2"]),
        link("clamp", [ROWS, None, None], ["", "", "1.5"]), link("tanh", [ROWS]), link("pow", [ROWS, None], ["", "2"]),
    ),
    "attention": (
        link("masked_fill", [[2, 3, 4, 5], [1, 1, 4, 5], None], ["", "", "-inf"]),
        link("_softmax", [[2, 3, 4, 5], None, None], ["", "-1", "False"]),
    ),
    "normalised": (
        link("square", [ROWS]), link("mean", [ROWS, None, None], ["", "[-1]", "True"]), link("rsqrt", [[6, 1]]),
        link("mul", [[6, 1], ROWS]), link("silu", [ROWS]),
    ),
    "gradient of a softmax, then of a bias": (
        link("_softmax_backward_data", [[40, 5], [40, 5], None, None], ["", "", "1", "6"]),
        link("sum", [[40, 5], None, None], ["", "[0]", "True"]),
    ),
    "channels": (
        link("exp", [[3, 2, 40]]), link("sum", [[3, 2, 40], None, None], ["", "[0, 2]", "False"]),
    ),
    "loss": (
        link("sub", [[50, 60], [50, 60], None], ["", "", "1"]), link("square", [[50, 60]]), link("mean", [[50, 60]]),
    ),
    "largest": (link("abs", [ROWS]), link("amax", [ROWS, None, None], ["", "[0]", "False"]), link("log1p", [[5]])),
    "log of a softmax": (
        link("leaky_relu", [ROWS]), link("_log_softmax", [ROWS, None, None], ["", "1", "False"]), link("neg", [ROWS]),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Triton's interpreter, for elements that are not stored
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("backward", [False, True])
def test_one_kernel_computes_what_the_chain_computes(name: str, backward: bool, tmp_path: Path, triton: None) -> None:
    file = tmp_path / "chain.py"  # Triton reads the source of a kernel
    text = OperatorChain(CHAINS[name], backward).with_skeleton()
    file.write_text(text, encoding="utf-8")
    own: dict[str, Any] = {"__name__": "chain"}
    exec(compile(text, str(file), "exec"), own)
    given = own["inputs"]()
    expected, found = own["chain"](*given), own["fused"](*given)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=2e-5, atol=2e-6, equal_nan=True)  # a row may be masked as a whole


def test_gradients_in_bfloat16_and_a_cast(triton: None) -> None:
    """Each formula of a gradient against torch's; a kernel keeps float32 in between."""
    for name, words in (("gelu_backward", ["", "", "none"]), ("gelu_backward", ["", "", "tanh"]), ("silu_backward", []),
                        ("tanh_backward", []), ("sigmoid_backward", []), ("threshold_backward", ["", "", "0.7"]),
                        ("leaky_relu_backward", ["", "", "0.1", "False"])):  # fmt: skip
        shapes = [ROWS, ROWS, *[None] * (len(words) - 2)]
        own: dict[str, Any] = {}
        chain = (
            link(name, shapes, words or None, "c10::BFloat16"),
            link("to", [ROWS, None], ["", "6"], "c10::BFloat16"),
        )
        exec(OperatorChain(chain, backward=True).with_skeleton(), own)
        given = own["inputs"]()
        assert own["fused"](*given).dtype == torch.float32
        assert torch.allclose(own["fused"](*given), own["chain"](*given), rtol=0.02, atol=0.01), (name, words)


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        ((link("exp", [ROWS]), link("mish", [ROWS])), "mish has no formula here"),
        ((link("exp", [ROWS]), link("pow", [ROWS, None], ["", "1.5"])), "pow has no formula here"),
        ((link("exp", [[300, 400]]), link("amax", [[300, 400]])), "its reductions are over 120,000 elements at a time"),
        ((link("amax", [[4, 4], None, None], ["", "[1]", "False"]), link("mul", [[4], [4, 4]])), "adds dimensions"),
        ((link("exp", [[1 << 31]]), link("neg", [[1 << 31]])), "more than 31 bits"),
        ((link("exp", [ROWS]), link("where", [ROWS, ROWS])), "an argument of where was not recorded"),
    ],
)  # fmt: skip
def test_what_one_kernel_cannot_do_is_refused_with_its_reason(chain: tuple[ChainLink, ...], why: str) -> None:
    with pytest.raises(NoSkeletonError, match=why):
        OperatorChain(chain, backward=True).with_skeleton()


def studied(chain: tuple[ChainLink, ...], kernels: int) -> KernelStudy:
    several = tuple(
        Contender(name, name, standing, "", Estimate(9.0, 9.0, 9.0, 9), speed=None, bytes=74, blocks=(9.0,))
        for name, standing in (("eager", Standing.FIRST), ("compile", Standing.ALIKE))
    )
    made = Bench(BenchOptions(("chain",)), "2.13", "cpu", "", 2, 3, 0.0, (BenchSetting("6x5 float32", "", several),))
    generated = tuple(CompiledKernel(f"k{number}", "", (), (), "") for number in range(kernels))
    return KernelStudy("run", OperatorChain(chain, backward=False), made, generated)


def test_a_kernel_is_written_only_where_inductor_breaks_the_chain() -> None:
    broken, whole = answer_of(studied(CHAINS["loss"], 2)), answer_of(studied(CHAINS["loss"], 1))
    refused = answer_of(studied((link("exp", [ROWS]), link("mish", [ROWS])), 2))
    text = str(broken.exports[".py"]())
    assert [each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)] == [
        "chain", "inputs", "fused"
    ]  # fmt: skip
    assert broken.next_command == "steptime bench chain.py:chain chain.py:fused --inputs chain.py:inputs"
    assert any("Inductor breaks it into 2 kernels" in note for note in broken.notes)
    for answer, why in ((whole, "moves no fewer bytes"), (refused, "mish has no formula here")):
        assert "triton" not in str(answer.exports[".py"]())
        assert any(why in note for note in answer.notes)
        assert "mine.py:mine" in answer.next_command


def test_without_triton_the_chain_is_still_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chain.py"
    file.write_text(OperatorChain(CHAINS["loss"], backward=False).with_skeleton(), encoding="utf-8")
    words = ["bench", f"{file}:chain", f"{file}:fused", "--inputs", f"{file}:inputs", "--device", "cpu"]
    assert main([*words, "--seconds", "0.1s", "--processes", "1", "--python", python()]) == 1
    assert "failed" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHAINS)
def test_a_device_judges_the_kernel(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chain.py"
    file.write_text(OperatorChain(CHAINS[name], backward=False).with_skeleton(), encoding="utf-8")
    words = ["bench", f"{file}:chain", f"{file}:fused", "--inputs", f"{file}:inputs", "--json"]
    main([*words, "--seconds", "0.5s", "--processes", "1"])
    contenders = json.loads(capsys.readouterr().out)["settings"][0]["contenders"]
    assert contenders[1]["standing"] not in ("other result", "failed"), contenders[1]["sentence"]
