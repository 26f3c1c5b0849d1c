"""TorchScript, tracing and graphs of fx, of models that take forces by a gradient, too."""

import copy
import io

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from training import halved, main, operation


def stored(script):
    file = io.BytesIO()
    torch.jit.save(script, file)
    return file.getvalue()


def seen(model, script, batch):
    data = stored(script)
    again = torch.jit.load(io.BytesIO(data))
    answers = script(batch[0]), halved(again)(batch[0]), model(batch[0])
    return {"answers": answers, "code": script.code, "bytes": data}


@operation()
def jit_trace(model, optimizer, step, batch):
    return seen(model, torch.jit.trace(model, batch[0]), batch)


@operation()
def jit_trace_in_evaluation(model, optimizer, step, batch):
    model.eval()
    try:
        script = torch.jit.trace(copy.deepcopy(model), batch[0], check_trace=True)
    finally:
        model.train()
    return seen(model, torch.jit.freeze(script.eval()), batch)


@operation()
def jit_trace_of_a_method(model, optimizer, step, batch):
    script = torch.jit.trace_module(model, {"forward": batch[0]})
    frozen = copy.deepcopy(model).requires_grad_(False)
    function = torch.jit.trace(lambda rows: frozen(rows).square(), batch[0])
    return script(batch[0]), function(batch[0]), function.code


@operation()
def jit_script(model, optimizer, step, batch):
    return seen(model, torch.jit.script(model), batch)


@operation()
def jit_script_of_a_copy(model, optimizer, step, batch):
    script = torch.jit.script(copy.deepcopy(model))
    answers = halved(script)(batch[0]), model(batch[0]), copy.deepcopy(script)(batch[0])
    return answers, torch.jit.freeze(script.eval())(batch[0])


class Forces(torch.nn.Module):
    """Energy and forces, as models of molecules have them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, rows):
        return self.last(torch.tanh(self.first(rows)))


class WithForces(torch.nn.Module):
    def __init__(self, energy):
        super().__init__()
        self.energy = energy

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        energy = self.energy(rows).sum()
        found = torch.autograd.grad([energy], [rows], create_graph=True, retain_graph=True)[0]
        assert found is not None
        return -found


@operation(Forces)
def jit_script_of_forces(model, optimizer, step, batch):
    script = torch.jit.script(WithForces(model))
    rows = batch[0].clone().requires_grad_()
    force = script(rows)
    force.square().sum().backward()
    return {"force": force, "gradient": rows.grad, "code": script.code, "bytes": stored(script),
            "plain": WithForces(model)(batch[0].clone().requires_grad_())}  # fmt: skip


@operation(Forces)
def jit_script_of_backward(model, optimizer, step, batch):
    @torch.jit.script
    def energy(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone().requires_grad_()
        torch.autograd.backward([rows.square().sum()])
        found = rows.grad
        assert found is not None
        return found

    return energy(batch[0]), energy.code


@operation()
def symbolic_trace(model, optimizer, step, batch):
    graph = torch.fx.symbolic_trace(model)
    torch.fx.passes.shape_prop.ShapeProp(graph).propagate(batch[0])
    return {"answers": (graph(batch[0]), halved(copy.deepcopy(graph))(batch[0]), model(batch[0])), "code": graph.code,
            "graph": str(graph.graph), "names": sorted(name for name in vars(graph) if name != "_graph")}  # fmt: skip


@operation()
def changed_graph(model, optimizer, step, batch):
    graph = torch.fx.symbolic_trace(copy.deepcopy(model))
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is torch.relu:
            node.target = torch.tanh
    graph.recompile()
    return graph(batch[0]), graph.code


@operation()
def traced_operators(model, optimizer, step, batch):
    weights = dict(model.named_parameters())

    def gradient(rows):
        loss = torch.func.functional_call(model, weights, (rows,)).square().sum()
        return torch.autograd.grad(loss, list(weights.values()), allow_unused=True)

    graph = make_fx(gradient)(batch[0])
    return graph(batch[0]), graph.code


if __name__ == "__main__":
    main()
