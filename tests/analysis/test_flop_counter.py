"""Our FLOPs of profiled programs are those of torch's own counter, which watches the dispatched operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.analysis.op_cost.op_cost import work_of
from steptime.trace.call_tree import ROOT, call_tree
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, EventKind, Trace

torch = pytest.importorskip("torch")
functional = torch.nn.functional

Program = Callable[[], Any]


def profiled(program: Program, folder: Path) -> Trace:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        program()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return read(path)


def flops(trace: Trace) -> float:
    """Of the innermost operators that have some: an operator around another one does that one's work."""
    events = trace.events
    total = 0.0
    for track in np.unique(events.track):
        rows = np.flatnonzero((events.track == track) & (events.event_kind == EventKind.OPERATOR))
        made = call_tree(events.start[rows], events.end[rows])
        own = [_flops(trace, int(rows[position])) for position in made.rows]
        done = [0.0] * len(own)
        for number in reversed(range(len(own))):
            done[number] = done[number] or own[number]
            if made.parent[number] != ROOT:
                done[made.parent[number]] += done[number]
        total += sum(each for each, parent in zip(done, made.parent, strict=True) if parent == ROOT)
    return total


def _flops(trace: Trace, row: int) -> float:
    events = trace.events
    columns = ((trace.shapes, events.shapes), (trace.dtypes, events.dtypes), (trace.inputs, events.inputs))
    texts = ["" if column[row] == ABSENT else table[column[row]] for table, column in columns]
    work = work_of(trace.symbols[events.name[row]], *texts)
    return work.flops or 0.0 if work is not None else 0.0


def counted(program: Program) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        program()
    return int(counter.get_total_flops())


def images(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def convolutions() -> Any:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 12, 3, dilation=2, bias=False),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(12 * 6 * 6, 5),
    )
    batch, target = torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4,))
    return lambda: functional.cross_entropy(net(batch), target).backward()


def convolution_of_one_and_three_dimensions() -> Any:
    line, block = torch.nn.Conv1d(4, 6, 5, stride=2), torch.nn.Conv3d(2, 3, (1, 3, 3), padding=(0, 1, 1))
    return lambda: (line(images(2, 4, 50)).sum() + block(images(2, 2, 4, 8, 8)).sum()).backward()


def transposed() -> Any:
    net = torch.nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    return lambda: net(images(2, 8, 16, 16))


def transformer() -> Any:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    head = torch.nn.Linear(32, 100)

    def program() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            head(layer(images(3, 10, 32))).logsumexp(-1).sum().backward()

    return program


def products() -> Any:
    left, right, bias = images(6, 5), images(5, 7), images(7)
    batch, other = images(3, 4, 5), images(3, 5, 6)

    def program() -> None:
        found = torch.addmm(bias, left, right).sum() + torch.baddbmm(images(3, 4, 6), batch, other).sum()
        found = found + torch.einsum("bij,bjk->bik", batch, other).sum() + torch.matmul(batch, right).sum()
        (found + (left @ right).sum() + torch.tensordot(left, right, dims=1).sum()).backward()

    return program


def embedding_and_norms() -> Any:
    table, norm = torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16)
    return lambda: norm(table(torch.randint(0, 50, (4, 9)))).softmax(-1).sum().backward()


@pytest.mark.parametrize(
    "make",
    [convolutions, convolution_of_one_and_three_dimensions, transposed, transformer, products, embedding_and_norms],
)
def test_flops_are_those_of_torchs_counter(make: Callable[[], Program], tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = make()
    assert flops(profiled(program, tmp_path)) == counted(program)


def test_attention_by_separate_products_is_counted_as_torch_counts_it(tmp_path: Path) -> None:
    query = images(2, 4, 12, 16)

    def program() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()

    assert flops(profiled(program, tmp_path)) == counted(program) == 6 * 2 * (2 * 4) * 12 * 12 * 16


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_skips_what_a_causal_mask_hides(causal: bool, tmp_path: Path) -> None:
    """torch has no formula for the CPU's flash attention; for CUDA's it counts the whole score matrix."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    query, key = images(2, 4, 12, 16), images(2, 4, 20, 16)
    shape, other = tuple(query.shape), tuple(key.shape)

    def program() -> None:
        functional.scaled_dot_product_attention(query, key, key, is_causal=causal).sum().backward()

    whole = sdpa_flop_count(shape, other, other) + sdpa_backward_flop_count(shape, shape, other, other)
    seen = sum(range(1, 13)) if causal else 12 * 20
    assert flops(profiled(program, tmp_path)) == whole * seen / (12 * 20)


def test_a_grouped_convolution_costs_the_same_in_each_direction(tmp_path: Path) -> None:
    """torch's counter takes the weight's gradient for that of an undivided convolution, groups times too much."""
    net = torch.nn.Conv2d(8, 12, 3, groups=4)
    batch = images(2, 8, 10, 10)
    once, groups = 2 * (2 * 8 * 8) * 12 * (8 // 4 * 9), 4

    def program() -> None:
        net(batch).sum().backward()

    assert flops(profiled(program, tmp_path)) == 3 * once
    assert counted(program) == (2 + groups) * once


def test_a_recurrent_layer_is_counted_although_torchs_counter_has_no_formula(tmp_path: Path) -> None:
    """Backward, oneDNN's layer makes all gradients; the same layer on tensors of a cell at a time is products only."""
    layer, sequence = torch.nn.LSTM(5, 7, 2, bidirectional=True), images(3, 2, 5)

    def program() -> None:
        layer(sequence)[0].sum().backward()

    weights = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert flops(profiled(program, tmp_path)) == 3 * 2 * (3 * 2) * weights
    assert counted(program) == 0


def test_cells_apart_cost_what_the_layer_costs(tmp_path: Path) -> None:
    layer, cell, sequence = torch.nn.LSTM(5, 7), torch.nn.LSTMCell(5, 7), torch.randn(3, 2, 5)

    def apart() -> None:
        state = None
        for step in sequence:
            state = cell(step, state)

    whole = flops(profiled(lambda: layer(sequence), tmp_path))
    assert whole == flops(profiled(apart, tmp_path)) == counted(apart)


@pytest.mark.parametrize("stored", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_work_of_a_sparse_matrix_is_unknown_and_not_that_of_a_dense_one(stored: str, tmp_path: Path) -> None:
    matrix, weight = getattr(torch.eye(64), stored)(), torch.randn(64, 4)
    assert flops(profiled(lambda: matrix @ weight, tmp_path)) == 0
    assert flops(profiled(lambda: torch.eye(64) @ weight, tmp_path)) == 2 * 64 * 64 * 4
