"""torch.profiler's key_averages(), read as its tutorial teaches: the rows with the largest own time are to blame."""

from __future__ import annotations

from typing import cast

from benchmarks.clinic.cases import Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals.rival import INPUT, Rival, profiled

ROWS = 3
MEANINGS = {
    "DataLoader": INPUT,
    "Optimizer.": ("single-tensor optimizer", "dense embedding gradient"),
    "aten::item": ("metrics", "logging", "leak", "Python loop"),
    "aten::_local_scalar_dense": ("metrics", "logging", "leak", "Python loop"),
    "aten::copy_": ("casts",),
    "aten::_to_copy": ("casts",),
    "aten::to": ("casts",),
    "aten::isnan": ("anomaly detection",),
    "aten::ne": ("anomaly detection",),
    "aten::eq": ("anomaly detection",),
    "aten::any": ("anomaly detection",),
    "aten::nan_to_num": ("deterministic", "unfused pointwise"),
    "aten::fill_": ("deterministic", "dense embedding gradient"),
    "aten::zero_": ("dense embedding gradient",),
    "aten::embedding_dense_backward": ("dense embedding gradient",),
    "aten::index": ("per-sample fetch", "Python loop", "metrics"),
    "aten::index_put_": ("deterministic", "metrics"),
    "aten::select": ("per-sample fetch", "Python loop", "metrics"),
    "aten::unbind": ("metrics", "Python loop"),
    "aten::stack": ("slow collate", "per-sample fetch", "list conversion"),
    "aten::cat": ("slow collate", "per-sample fetch", "list conversion"),
    "aten::_softmax": ("naive attention", "Python loop"),
    "aten::bmm": ("naive attention",),
    "aten::mul": ("unfused pointwise", "Python loop", "denormals"),
    "aten::add": ("unfused pointwise", "Python loop", "denormals"),
    "aten::add_": ("Python loop", "single-tensor optimizer"),
    "aten::mul_": ("Python loop", "single-tensor optimizer"),
    "aten::tanh": ("unfused pointwise",),
    "aten::pow": ("unfused pointwise",),
    "aten::sigmoid": ("Python loop",),
    "aten::_thnn_fused_gru_cell": ("Python loop",),
    "Torch-Compiled": ("recompilation",),
    "CompiledFunction": ("recompilation",),
    "checkpoint": ("recomputation",),
    "gloo": ("straggler", "missing no_sync"),
}
"""Name of a row, or how it starts or what it holds, and what the textbook reads in it."""
HEALTHY = ("aten::mm", "aten::addmm", "aten::linear", "aten::mkldnn_convolution", "aten::convolution_backward")
"""Matrix products at the top are what training should be doing."""


def says(python: str, case: Case, amount: int) -> Reported:
    """The first rows by own CPU time. Raises JobFailed."""
    rows = cast("list[tuple[str, float, float]]", profiled(python, case, amount))[:ROWS]
    causes = tuple(_word(name) for name, _, _ in rows)
    shares = tuple((share, share, share) for _, _, share in rows)
    return Reported(rows[0][0], causes, shares, (None,) * len(rows))


def _word(name: str) -> str:
    if name in MEANINGS:
        return name
    return next((word for word in MEANINGS if not word.startswith("aten::") and word in name), name)


TEXTBOOK = Rival(
    "profiler",
    "torch.profiler around the whole job; the three rows of key_averages() with the largest own CPU time; a product of "
    "matrices in the first row is no complaint",
    MEANINGS,
    says,
    HEALTHY,
)
