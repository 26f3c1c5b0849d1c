"""torch.compile's own records: the lines that kernels compute, graph breaks, guards, and what a report says of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from analysis import trace_events as made

from steptime.cli.main import main
from steptime.diagnosis import CompanionFiles, diagnose_paths
from steptime.report.page.page import render
from steptime.trace.compile_logs import LONGEST_REPORTED, CompileLogs, read_compile_logs

LOGS = Path(__file__).parent / "compile_logs"
"""From torch 2.13 on a CPU, with TORCH_COMPILE_DEBUG=1: records that are read, code cut to its first lines."""
GELU = "cpp_fused_add_gelu_mul_sigmoid_sum_0"
TRITON = """\
V0521 11:50:45.7 1 graph.py:1] {"artifact": {"name": "inductor_post_grad_graph"}, "frame_id": 0, "frame_compile_id": 0}
\tclass <lambda>(torch.nn.Module):
\t    def forward(self, arg0_1: "f32[8]"):
\t         # File: /job/aot.py:30 in forward, code: x = self.relu(x)
\t        relu: "f32[8]" = torch.ops.aten.relu.default(arg0_1)
\t         # File: /job/aot.py:32 in forward, code: d = a * 3.14
\t        mul: "f32[8]" = torch.ops.aten.mul.Tensor(relu, 3.14)
V0521 11:50:45.8 1 graph.py:1] {"inductor_output_code": {}, "frame_id": 0, "frame_compile_id": 0}
\t# kernel path: /cache/bl/cblbp.py
\t# Topologically Sorted Source Nodes: [x, d], Original ATen: [aten.relu, aten.mul]
\t# Graph fragment:
\t#   %relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%arg0_1,), kwargs = {})
\t#   %mul : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%relu, 3.14), kwargs = {})
\ttriton_poi_fused_mul_relu_0 = async_compile.triton('triton_poi_fused_mul_relu_0', '''
\timport triton
\t''', device_str='cuda')
V0521 11:50:45.9 1 graph.py:1] {"damaged
"""


def test_what_the_compiler_says_of_its_kernels_becomes_lines_of_the_users_file() -> None:
    kernels = {kernel.name: kernel for kernel in read_compile_logs(LOGS).kernels}
    assert [line.line for line in kernels[GELU].lines] == [12, 13, 14]
    assert "torch.sigmoid(h)" in kernels[GELU].lines[1].text


def test_a_triton_kernel_gets_the_lines_of_its_graphs_nodes(tmp_path: Path) -> None:
    (tmp_path / "dedicated_log_torch_trace_rank_0_a.log").write_text(TRITON)
    (tmp_path / "dedicated_log_torch_trace_rank_1_b.log").write_text("")
    (kernel,) = read_compile_logs(tmp_path, rank=0).kernels
    assert (kernel.file, kernel.operators) == ("cblbp.py", ("aten.relu", "aten.mul"))
    assert [(line.line, line.text) for line in kernel.lines] == [(30, "x = self.relu(x)"), (32, "d = a * 3.14")]
    assert not read_compile_logs(tmp_path, rank=1).kernels


def test_breaks_guards_and_limits_have_their_places_and_their_reasons() -> None:
    logs = read_compile_logs(LOGS)
    assert {(each.source.line, each.reason.split()[0]) for each in logs.breaks} == {(14, "Unsupported"), (16, "Failed")}
    assert "tensor 'x' size mismatch at index 0. expected 32, actual 48" in {
        each.reason for each in logs.recompilations
    }
    assert [(each.source.function, each.source.line) for each in logs.limits] == [("f", 3)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A step that spends most of its time in a generated kernel."""
    path = tmp_path / "trace.json"
    made.written(path, [made.step(0, 1000), made.operator(f"graph_3_{GELU}", 50, 950)])
    return path


def test_a_report_places_generated_kernels_and_tells_what_broke(trace: Path) -> None:
    report = diagnose_paths([str(trace)], companions=CompanionFiles(LOGS))
    case = report.processes[0].case
    assert case.compiler is not None
    assert [(use.name, use.lines[0].line) for use in case.compiler.kernels] == [(f"graph_3_{GELU}", 12)]
    assert {"graph-break", "recompile-limit"} <= {finding.name for finding in report.processes[0].findings}
    page = render(report)
    assert "Source of <code>graph_3_cpp" in page
    assert "expected 32, actual 48" in page


def test_records_alongside_a_trace_are_found_where_they_are_its_own(trace: Path) -> None:
    (trace.parent / "compiled").symlink_to(LOGS)
    assert diagnose_paths([str(trace)]).processes[0].case.compiler is not None
    other = trace.with_name("other.json")
    made.written(other, [made.step(0, 1000), made.operator("aten::mm", 50, 950)])
    assert diagnose_paths([str(other)]).processes[0].case.compiler is None


def test_the_full_report_of_a_trace_takes_them_from_where_it_is_reported(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(trace), "--compile-logs", str(LOGS), "-o", str(page)]) == 0
    assert "Source of <code>graph_3_cpp" in page.read_text()


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_records_is_one_sentence(trace: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (trace.parent / "empty").mkdir()
    assert main(["diagnose", str(trace), "--compile-logs", str(trace.parent / name)]) == 2
    assert {"empty": "(no-compile-logs)", "missing": "(no-such-file)"}[name] in capsys.readouterr().err


HOSTILE = {
    "keys": '{"artifact": {"name": "recompile_reasons"}, "frame_id": [], "frame_compile_id": {}}\n\t["a"]',
    "stacks": '{"artifact": {"name": "inductor_provenance_tracking_kernel_stack_traces"}}\n\t{"a": 1}',
    "nodes": '{"artifact": {"name": "inductor_provenance_tracking_node_mappings"}}\n\t{"cppCodeToPost": {"a": 1}}',
    "digits": '{"artifact": {"name": "dynamo_graph_break_reason"}}\n\tGraph break in user code at a.py:' + "1" * 5000,
    "places": '{"inductor_post_grad_graph": {}}\n\t# File: ' + ":1 in a" * 200_000 + ",",
    "operators": '{"inductor_output_code": {}}\n\t# '
    + "Original ATen: [" * 100_000
    + "\n\tk = async_compile.triton('k', '''\n\t''')",
    "breaks": '{"artifact": {"name": "dynamo_graph_break_reason"}}\n\tGraph break ' + "user code at :" * 100_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_records_that_no_compiler_wrote_are_passed_over(tmp_path: Path, kind: str) -> None:
    """The long ones: what takes more than one look at each character takes hours."""
    (tmp_path / "dedicated_log_torch_trace_a.log").write_text(f"V1125 1 a.py:1] {HOSTILE[kind]}\n")
    logs = read_compile_logs(tmp_path)
    assert [kernel for kernel in logs.kernels if kernel.lines or kernel.operators] == []
    assert replace(logs, kernels=()) == CompileLogs()


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    graph = tmp_path / "torch_compile_debug" / "run" / "torchinductor" / "model"
    graph.mkdir(parents=True)
    for place in (tmp_path / "dedicated_log_torch_trace_a.log", graph / "output_code.py", graph / "other"):
        place.symlink_to("/nowhere")
    os.mkfifo(tmp_path / "dedicated_log_torch_trace_b.log")
    os.mkfifo(graph / "fx_graph_readable.py")
    assert read_compile_logs(tmp_path) == CompileLogs()


def test_what_a_record_says_is_cut_and_escaped(trace: Path) -> None:
    hostile = "<script>alert(1)</script>"
    code = f"{GELU} = async_compile.cpp_pybinding([], r'''\n\t{hostile}\n\t''')"
    broken = f"Graph break in user code at /job/{hostile}.py:3\n\tReason: {hostile * 1000}"
    (trace.parent / "dedicated_log_torch_trace_a.log").write_text(
        f'V1125 1 a.py:1] {{"inductor_output_code": {{}}, "frame_id": 0}}\n\t{code}\n'
        f'V1125 1 a.py:1] {{"artifact": {{"name": "dynamo_graph_break_reason"}}}}\n\t{broken}\n'
    )
    report = diagnose_paths([str(trace)])
    case = report.processes[0].case
    assert case.compiler is not None
    assert hostile in case.compiler.kernels[0].code
    assert len(case.compiler.breaks[0].reason) == LONGEST_REPORTED
    assert hostile not in render(report)
