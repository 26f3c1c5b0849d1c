"""Bytes of operators are those of the tensors that torch hands in and gets back; where not, the table says why."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.analysis.op_cost.op_cost import work_of
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, EventKind

torch = pytest.importorskip("torch")
functional = torch.nn.functional

INTENDED = {
    "rows that are taken, not the whole table": "embedding gather index_select nll_loss_forward",
    "a whole table is zeroed before rows are added to it": "embedding_dense_backward",
    "rows of the target that are written, or read and written, not all of it": "index_add_ scatter_",
    "what is overwritten is not read": "bernoulli_ copy_ fill_ normal_ uniform_ zero_",
    "the input's sides matter, its numbers do not": """_adaptive_avg_pool2d_backward avg_pool2d_backward
        max_pool2d_with_indices_backward nll_loss_backward""",
    "statistics of a norm or of attention are left out": """native_batch_norm native_group_norm native_layer_norm
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward""",
    "torch's operators return nothing, but write": "_foreach_add_ _foreach_addcdiv_ _fused_adamw_ _fused_sgd_",
}
WITHOUT_WORK = """
    detach empty empty_like expand new_empty_strided ones ones_like randint randn select view zeros zeros_like
    _record_function_enter_new _record_function_exit
"""
WITHOUT_MODEL = {"index"}
"""Its indices are a list of optional tensors, which the trace does not describe."""


class Program:
    """Operators of every family, on tensors of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.block = torch.randn(6, 8, 10, requires_grad=True)
        self.image = torch.randn(2, 4, 9, 9, requires_grad=True)
        self.table = torch.randn(50, 16, requires_grad=True)

    def run(self) -> None:
        self.elementwise(self.block.detach())
        self.reductions(self.block.detach())
        self.movement(self.block.detach())
        self.layers()
        self.products()
        self.lists()

    def elementwise(self, block: Any) -> None:
        column, other = torch.randn(8, 1), block.clone()
        for one in "neg exp sqrt sigmoid tanh relu abs log1p floor sin isnan logical_not".split():  # noqa: SIM905
            getattr(torch, one)(block)
        for one in "gelu silu hardswish elu softplus leaky_relu mish".split():  # noqa: SIM905
            getattr(functional, one)(block)
            getattr(functional, one)(self.block).sum().backward()
        for one in "add sub mul div maximum atan2 eq lt logical_and".split():  # noqa: SIM905
            getattr(torch, one)(block, column)
            getattr(torch, one)(block, other)
        other.add_(column).clamp_(0, 1).sqrt_().copy_(column).zero_().fill_(1.0).normal_().uniform_().bernoulli_()
        torch.where(block > 0, block, column)
        torch.lerp(block, other, 0.5)
        torch.addcmul(block, other, other)
        block.masked_fill(block > 0, 1.0)
        functional.dropout(self.block, 0.5).sum().backward()

    def reductions(self, block: Any) -> None:
        for one in "sum mean amax argmax var std prod norm logsumexp softmax log_softmax cumsum sort".split():  # noqa: SIM905
            getattr(block, one)(1)
        block.sum()
        block.mean((0, 2))
        block.max(2)
        block.topk(3, 1)
        (block > 0).any(1)
        (block > 0).all()
        functional.mse_loss(self.block, torch.zeros(6, 8, 10)).backward()
        functional.binary_cross_entropy_with_logits(block, torch.zeros(6, 8, 10))
        functional.cross_entropy(self.block.flatten(0, 1), torch.randint(0, 10, (48,))).backward()

    def movement(self, block: Any) -> None:
        torch.cat([block, block])
        torch.stack([block, block])
        block.flip(0)
        block.roll(1, 0)
        block.to(torch.bfloat16).float()
        rows, places = torch.randint(0, 6, (4,)), torch.randint(0, 8, (6, 3, 10))
        block.index_select(0, rows)
        block[rows]
        block.gather(1, places)
        block.clone().scatter_(1, places, 1.0)
        block.clone().index_add_(0, rows, torch.ones(4, 8, 10))
        functional.embedding(torch.randint(0, 50, (7,)), self.table).sum().backward()

    def layers(self) -> None:
        functional.layer_norm(self.block, (10,), torch.ones(10), torch.zeros(10)).sum().backward()
        functional.group_norm(self.image, 2).sum().backward()
        functional.batch_norm(self.image, torch.zeros(4), torch.ones(4), training=True).sum().backward()
        functional.max_pool2d(self.image, 3, 2).sum().backward()
        functional.avg_pool2d(self.image, 3).sum().backward()
        functional.adaptive_avg_pool2d(self.image, 3).sum().backward()
        functional.interpolate(self.image, scale_factor=2).sum().backward()
        functional.interpolate(self.image, scale_factor=2, mode="bilinear").sum().backward()
        functional.conv2d(self.image, torch.randn(6, 2, 3, 3, requires_grad=True), groups=2).sum().backward()
        weight = torch.randn(4, 3, 3, 3, requires_grad=True)
        functional.conv_transpose2d(self.image, weight, stride=2).sum().backward()
        functional.conv1d(torch.randn(2, 4, 20), torch.randn(3, 4, 5), stride=2)
        query, key, value = (torch.randn(2, 4, 10, 16, requires_grad=True) for _ in range(3))
        functional.scaled_dot_product_attention(query, key, value).sum().backward()

    def products(self) -> None:
        left, right = torch.randn(5, 6), torch.randn(6, 7)
        torch.addmm(torch.randn(7), left, right)
        torch.baddbmm(torch.randn(2, 5, 7), torch.randn(2, 5, 6), torch.randn(2, 6, 7))
        left @ right
        torch.mv(left, torch.randn(6))
        torch.dot(left[0], left[1])

    def lists(self) -> None:
        first, second = ([torch.randn(4, 5), torch.randn(7)] for _ in range(2))
        torch._foreach_add_(first, second)
        torch._foreach_mul(first, second)
        torch._foreach_sqrt(first)
        torch._foreach_norm(first)
        torch._foreach_addcdiv_(first, second, second)
        torch._foreach_copy_(first, second)
        torch._foreach_zero_(second)
        parameter = torch.nn.Parameter(torch.randn(9))
        parameter.grad = torch.randn(9)
        torch.optim.SGD([parameter], lr=0.1, momentum=0.9, fused=True).step()
        torch.optim.AdamW([parameter], fused=True).step()


def bytes_handled(program: Program) -> dict[str, set[int]]:
    """What goes in and comes out of each operator, by its name."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    handled: dict[str, set[int]] = defaultdict(set)

    class Weighing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)]
            handled[str(func).split(".")[1]].add(sum(each.numel() * each.element_size() for each in tensors))
            return out

    with Weighing():
        program.run()
    return handled


def bytes_modelled(program: Program, path: Path) -> dict[str, set[float]]:
    """What we say from a trace of the same."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        program.run()
    profiler.export_chrome_trace(str(path))
    trace = read(path)
    events = trace.events
    modelled: dict[str, set[float]] = defaultdict(set)
    for row in np.flatnonzero((events.event_kind == EventKind.OPERATOR) & (events.shapes != ABSENT)):
        inputs = trace.inputs[events.inputs[row]] if events.inputs[row] != ABSENT else ""
        name = trace.symbols[events.name[row]]
        work = work_of(name, trace.shapes[events.shapes[row]], trace.dtypes[events.dtypes[row]], inputs)
        if work is not None:
            modelled[name.rsplit("::", 1)[-1]].add(work.bytes)
    return modelled


def test_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    program = Program()
    program.run()  # what is only made once is made now
    handled, modelled = bytes_handled(program), bytes_modelled(program, tmp_path / "trace.json")
    intended = {name for names in INTENDED.values() for name in names.split()}
    assert set(handled) - set(modelled) - set(WITHOUT_WORK.split()) == WITHOUT_MODEL
    different = {name for name, sizes in handled.items() if name in modelled and not sizes <= modelled[name]}
    assert different - intended == set()
    assert intended - different == set()
    assert len(handled) - len(different) - len(WITHOUT_WORK.split()) > 80
