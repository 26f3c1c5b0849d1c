"""Kernels of torch.compile and where their source is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from traces import kernel, launch, operator, write

from steptime.advice.device_evidence import generated_sources
from steptime.analysis.trace_steps import steps_of
from steptime.quantities import SourceLine
from steptime.trace.links import link
from steptime.trace.reader import read

NOWHERE = np.empty((0, 2), np.int64)


def test_a_generated_kernel_has_its_file(tmp_path: Path) -> None:
    message: dict[str, Any] = {"kernel_file": "/cache/ab/cab.py", "kernel_hash": "cab", "kernel_backend": "triton"}
    name = "triton_poi_fused_add_0"
    events = [operator(name, 0, 10, **message), launch(1, 2, 3), kernel(1, 20, 30, name)]
    events += [operator("aten::mm", 40, 50), launch(2, 42, 43), kernel(2, 60, 70, "gemm")]
    trace = write(events, tmp_path)
    assert generated_sources(trace, link(trace, NOWHERE)) == {name: SourceLine("/cache/ab/cab.py", 1, name)}


def test_a_kernel_that_is_only_called_like_its_operator_is_none(tmp_path: Path) -> None:
    trace = write([operator("attn_fwd", 0, 10), launch(1, 2, 3), kernel(1, 20, 30, "attn_fwd")], tmp_path)
    assert generated_sources(trace, link(trace, NOWHERE)) == {}


def test_real_compiled_graphs_name_the_files_of_their_kernels(shared_data: Path) -> None:
    trace = read(shared_data / "tracelens/torch_compile_triton/trace.json.gz")
    found = generated_sources(trace, link(trace, steps_of(trace)))
    normal = found["triton_red_fused_add_mean_mul_pow_rsqrt_0"]
    assert normal.file.endswith("/mw/cmwjlpfu2kb4ehcuvblmjopjzi4rp4n2rtyqnvbbrb4xvqkksyqd.py")
    assert len(found) >= 4
