"""`steptime kernel`: chains of recorded jobs, the functions made of them, and what Inductor makes of those."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from machines import two_cpus
from preloading import python
from traces import Events, Written, operator, step, write

from steptime.analysis.layout import lay_out_whole
from steptime.analysis.op_cost.call import parse
from steptime.analysis.recorded_breakdown import breakdown_of_process
from steptime.analysis.step_context import StepContext, step_context
from steptime.answer.markdown import as_markdown, prose
from steptime.callables.bench import Bench, BenchOptions, BenchSetting, Contender, Standing
from steptime.callables.kernel import (
    FIRST_LINE,
    KEYWORDS,
    ChainLink,
    KernelStudy,
    OperatorChain,
    chains,
    hottest,
    placed,
    study,
)
from steptime.callables.kernel_answer import answer_of
from steptime.callables.triton_skeleton import DTYPES
from steptime.cli.main import main
from steptime.diagnosis import diagnose_paths
from steptime.errors import NothingMeasuredError
from steptime.quantities import Estimate, SourceLine
from steptime.recording.load import load
from steptime.trace.compile_logs import read_compile_logs
from steptime.trace.table import Trace

GPU = Path(__file__).resolve().parents[1] / "data" / "gpu"
LOGS = Path(__file__).resolve().parents[1] / "trace" / "compile_logs"
FLOATS = ("float", "float")
WITHOUT = ("dense", "dense_device_bound", "streams")
"""Jobs whose activations each have a matmul on both sides."""


@cache
def recorded(name: str) -> tuple[OperatorChain, ...]:
    windows = (breakdown_of_process(each, lay_out_whole(each)).windows for each in load(GPU / name).processes)
    return max((chains(window) for several in windows for window in several), key=len)


def hottest_of(name: str) -> OperatorChain:
    folder = str(GPU / name)
    return hottest(folder, diagnose_paths((folder,)).processes[0].case)


def link(name: str, shapes: list[Any], dtypes: list[str], inputs: list[str] | None = None) -> ChainLink:
    return ChainLink(name, parse(json.dumps(shapes), json.dumps(dtypes), json.dumps(inputs or [""] * len(shapes))))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.name, marks=pytest.mark.slow if each.name == "resnet_float32" else ())  # the largest
        for each in sorted(GPU.iterdir())
        if each.is_dir()
    ],
)
def test_chains_of_recorded_jobs_run_and_give_what_was_recorded(name: str) -> None:
    """Each function runs with torch, on tensors without values; its shape and dtype are those that we expect."""
    found = recorded(name)
    assert bool(found) == (name not in WITHOUT)
    assert [each.duration for each in found] == sorted((each.duration for each in found), reverse=True)
    for chain in found[:20]:
        own: dict[str, Any] = {}
        with torch.device("meta"):
            exec(compile(chain.source, "chain.py", "exec"), own)
            result = own["chain"](*own["inputs"]())
        expected = chain.links[-1].result
        assert tuple(result.shape) == expected.shape, chain.source
        assert str(result.dtype) == f"torch.{DTYPES[expected.type]}", chain.source
        assert len(chain.inputs) == len(own["inputs"]())
        assert chain.source.splitlines()[FIRST_LINE - 1].startswith("    v1 = ")


def test_lines_of_a_recorded_chain_are_those_that_spell_its_operators() -> None:
    chain = hottest_of("chargpt")
    assert [each.name for each in chain.links] == ["_softmax_backward_data", "masked_fill", "mul"]
    assert chain.backward
    assert chain.calls == 6
    places = [each.place for each in chain.links]
    assert [each and (Path(each.file).name, each.line) for each in places] == [
        ("model.py", 64), ("model.py", 63), ("model.py", 62),
    ]  # fmt: skip
    assert chain.places_of([SourceLine("chain.py", FIRST_LINE + 1), SourceLine("chain.py", 99)]) == (places[1],)


def window(written: Written, events: Events) -> StepContext:
    trace = written(events)
    return step_context(trace, np.array([[trace.events.start.min(), trace.events.ends(slice(None)).max()]]))


def pointwise(name: str, start: float, end: float, shape: list[int], **args: Any) -> dict[str, Any]:
    given = {"Input Dims": [shape], "Input type": ["float"], "Concrete Inputs": [""], **args}
    return operator(f"aten::{name}", start, end, **given)


def test_a_chain_ends_at_another_operator_another_shape_and_a_random_number(tmp_path: Path) -> None:
    def written(events: Events) -> Trace:
        return write(events, tmp_path)

    def of(*between: dict[str, Any]) -> list[list[str]]:
        events = [step(0, 100), pointwise("exp", 10, 20, [64]), *between, pointwise("tanh", 40, 50, [64]),
                  pointwise("neg", 60, 70, [64])]  # fmt: skip
        return [[each.name for each in chain.links] for chain in chains(window(written, events))]

    assert of() == [["exp", "tanh", "neg"]]
    assert of(operator("aten::empty", 25, 26)) == [["exp", "tanh", "neg"]]
    assert of(operator("aten::mm", 25, 26)) == [["tanh", "neg"]]
    assert of(pointwise("exp", 25, 26, [32])) == [["tanh", "neg"]]
    assert of(pointwise("bernoulli", 25, 26, [64])) == [["tanh", "neg"]]
    hostile: Any = {"Input Dims": [[64], []], "Input type": ["float", "Scalar"],
                    "Concrete Inputs": ["", "__import__('os')"]}  # fmt: skip
    told = operator("aten::add", 25, 26, **hostile)
    assert "__import__" not in "".join(each.source for each in chains(window(written, [step(0, 100), told])))
    assert of(told) == []


def test_arguments_are_written_as_torch_takes_them() -> None:
    assert KEYWORDS["gelu", 1] == "approximate"
    links = (
        link("mul", [[8, 4], []], ["float", "double"]),
        link("gelu", [[8, 4], []], ["float", ""], ["", "tanh"]),
        link("add", [[8, 4], [4], []], ["float", "float", "Scalar"], ["", "", "2"]),
        link("masked_fill", [[8, 4], [1, 4], []], ["float", "bool", "Scalar"], ["", "", "-inf"]),
        link("mean", [[8, 4], [], [], []], ["float", "ScalarList", "Scalar", ""], ["", "[-1]", "True", ""]),
        link("div", [[8, 4], [8, 1]], list(FLOATS)),
    )
    chain = OperatorChain(links, backward=False)
    assert [each.strip() for each in chain.source.splitlines()[6:12]] == [
        "v1 = aten.mul(x0, 0.5)",
        'v2 = aten.gelu(v1, approximate="tanh")',
        "v3 = aten.add(v2, x1, alpha=2)",
        'v4 = aten.masked_fill(v3, x2, float("-inf"))',
        "v5 = aten.mean(v4, [-1], True)",
        "v6 = aten.div(x0, v5)",
    ]
    assert [each.shape for each in chain.inputs] == [(8, 4), (4,), (1, 4)]
    assert chain.moved == sum((136 + 128, 256, 128 + 16 + 128, 128 + 4 + 128, 128 + 32, 128 + 32 + 128))
    with pytest.raises(ValueError, match="no literal"):
        _ = replace(chain, links=(link("add", [[8], []], ["float", "Scalar"], ["", "x()"]),)).source


def test_a_source_line_of_a_stranger_stays_a_comment() -> None:
    first, second = link("exp", [[8]], ["float"]), link("neg", [[8]], ["float"])
    evil = SourceLine("a.py", 3, "f", "x\nimport os\r\u2028os.abort()")
    source = OperatorChain((replace(first, place=evil), second), backward=False).source
    assert [each.strip() for each in source.splitlines() if "abort" in each] == [
        "v1 = aten.exp(x0)  # a.py:3 x import os os.abort()"
    ]


def test_lines_are_in_the_order_of_the_operators() -> None:
    lines = {10: "y = a * b", 12: "h = h * torch.sigmoid(h)", 13: "z = torch.tanh(h) * 2", 20: "w = c * d"}
    sources = {number: SourceLine("a.py", number, "f", text) for number, text in lines.items()}
    start = SourceLine("a.py", 9, "f")
    names = ["sigmoid", "mul", "tanh", "mul"]
    uses = [SimpleNamespace(name=f"aten::{name}", phase="forward", source=start) for name in dict.fromkeys(names)]
    case: Any = SimpleNamespace(
        operators=uses,
        paths=[SimpleNamespace(lines=(line,), duration=1.0) for line in sources.values()],
    )  # fmt: skip
    chain = placed(OperatorChain(tuple(link(name, [[8]], ["float"]) for name in names), backward=False), case)
    assert [each.place and each.place.line for each in chain.links] == [12, 12, 13, 13]


def test_a_recording_without_a_chain_and_tensors_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernel", str(GPU / "streams")]) == 1
    assert "has no two pointwise operators or reductions in a row" in capsys.readouterr().err
    assert main(["kernel", str(tmp_path / "nowhere")]) == 2
    assert "is neither a recording nor a callable" in capsys.readouterr().err
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    say: Callable[[str], None] = pytest.fail
    with pytest.raises(NothingMeasuredError, match="with all copies"):
        study("r", BenchOptions(()), hottest_of("nanogpt"), python(), (), say)


@pytest.mark.slow
def test_the_hottest_chain_is_compiled_and_shown_with_its_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole way: of a recording of a GPU, on this CPU, with the generated C++."""
    own, page = tmp_path / "chain.py", tmp_path / "kernel.md"
    words = [
        "kernel",
        str(GPU / "graphs"),
        "--processes",
        "1",
        "--seconds",
        "0.3s",
        "--python",
        sys.executable,
        "--json",
    ]
    assert main([*words, "-o", str(own), "-o", str(page)]) == 0
    reported = json.loads(capfd.readouterr().out)
    eager, compiled = reported["bench"]["settings"][0]["contenders"]
    assert compiled["standing"] not in ("other result", "suspicious", "failed")
    assert eager["bytes"] == compiled["bytes"] > 0
    assert reported["headline"].startswith(" → ".join(each["name"] for each in reported["chain"]["links"]))
    (kernel,) = reported["kernels"]
    text = page.read_text(encoding="utf-8")
    assert 'extern "C"' in kernel["code"]
    assert f"### {prose(kernel['name'])}" in text
    assert f"```\n{kernel['code']}\n```" in text
    assert "compiled.py:15" in text.partition("## Generated code")[2].partition("```")[0]
    assert own.read_text(encoding="utf-8") == hottest_of("graphs").source


def test_the_bound_is_a_copy_of_the_bytes() -> None:
    def contender(name: str, ns: float, standing: Standing, speed: float | None) -> Contender:
        times = Estimate(speed, speed, speed, 9, "1") if speed else None
        return Contender(name, name, standing, "", Estimate(ns, ns, ns, 9), speed=times, bytes=74_000_000, blocks=(ns,))

    setting = BenchSetting("8x8 float32", "", (contender("eager", 8e6, Standing.FIRST, None),
                                               contender("compile", 4e6, Standing.FASTER, 2.0)))  # fmt: skip
    made = Bench(BenchOptions(("a.py:f",)), "2.13", "cpu", "", 2, 3, 0.0, (setting,))
    kernels = read_compile_logs(LOGS).kernels
    answer = answer_of(KernelStudy("a.py:f", None, made, kernels, machine=two_cpus(2, "2.13")))
    assert answer.headline == (
        f"a.py:f in {len(kernels)} generated kernels: 8 ms → 4 ms (2x). "
        "A copy of its 70.6 MiB takes 2 ms, 50 % of that."
    )
    page = as_markdown(answer)
    assert [each.name for each in kernels if f"### {prose(each.name)}" not in page or each.code not in page] == []
    bound = answer.tables[0].rows[-1]
    assert [cell.value for cell in bound[2:]] == [74_000_000, 2e6, 3.7e10]
