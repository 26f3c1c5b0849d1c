"""torch.compile before and after the first steps: the same graphs, the same breaks, the same numbers."""

import copy

import torch
import torch._dynamo
from torch.autograd.functional import vjp
from training import DEAR, FEW, Net, halved, loss_of, main, operation, saved, train

BACKEND = "aot_eager"
_kept = {}


def counted(function):
    """What Dynamo counts while something is compiled and called: graphs, breaks, recompilations. Apart, the frames that
    it looked at: while a profiler runs, torch opens a range around each compilation, and Dynamo looks at that, too."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    answer = function()
    reported = {name: sorted(map(str, counters[name].items())) for name in ("graph_break", "unique_graphs")}
    reported["stats"] = dict(counters["stats"])
    return answer, {"told": reported, "frames": sorted(counters["frames"].items())}


@operation(lambda: torch.compile(Net(), backend=BACKEND))
def compiled_before_the_training(model, optimizer, step, batch):
    answer, reported = counted(lambda: model(batch[0]))
    return {"answer": answer, **reported, "original": model._orig_mod(batch[0]), "names": sorted(vars(model))}


def _in_place():
    model = Net()
    model.compile(backend=BACKEND)
    return model


@operation(_in_place)
def compiled_in_place(model, optimizer, step, batch):
    other = copy.deepcopy(model)
    return {"answers": (model(batch[0]), halved(other)(batch[0])), "bytes": saved(model), "names": sorted(vars(model)),
            "none": (model._compiled_call_impl is None, other._compiled_call_impl is None)}  # fmt: skip


@operation()
def compiled_in_place_in_mid_training(model, optimizer, step, batch):
    if step == 20:
        model.compile(backend=BACKEND)
    if step == 45:
        model._compiled_call_impl = None
    return {
        "answers": (model(batch[0]), halved(copy.deepcopy(model))(batch[0])),
        "none": model._compiled_call_impl is None,
    }


@operation(steps=DEAR)
def compiled_anew(model, optimizer, step, batch):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=BACKEND, fullgraph=True)
    answer, reported = counted(lambda: compiled(batch[0]))
    loss = loss_of(compiled, batch)
    loss.backward()
    return {"answer": answer, **reported, "loss": loss, "gradients": [each.grad for each in model.parameters()]}


@operation(steps=DEAR)
def compiled_copy(model, optimizer, step, batch):
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), backend=BACKEND)
    other = torch.optim.SGD(compiled.parameters(), lr=0.1)
    loss, reported = counted(lambda: train(compiled, other, batch) if step % 10 == 1 else compiled(batch[0]))
    return {"loss": loss, **reported, "answer": halved(compiled)(batch[0])}


@operation(steps=DEAR)
def compiled_training_step(model, optimizer, step, batch):
    torch._dynamo.reset()

    def whole(rows, wanted):
        loss = torch.nn.functional.mse_loss(model(rows), wanted)
        loss.backward()
        return loss

    loss, reported = counted(lambda: torch.compile(whole, backend=BACKEND)(*batch))
    return {"loss": loss, **reported, "gradients": [each.grad for each in model.parameters()]}


@operation(steps=DEAR)
def compiled_forces(model, optimizer, step, batch):
    torch._dynamo.reset()

    def forces(rows):
        rows = rows.detach().requires_grad_()
        energy = model(rows).square().sum()
        return torch.autograd.grad(energy, rows)[0]

    answer, reported = counted(lambda: torch.compile(forces, backend="eager")(batch[0]))
    return {"answer": answer, **reported, "plain": vjp(model, batch[0], torch.ones(8, 4))}


@operation(steps=FEW)
def compiled_by_inductor(model, optimizer, step, batch):
    if step in (1, 28):
        torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model) if step % 2 else model)
    answer, reported = counted(lambda: compiled(batch[0]))
    return {"answer": answer, **reported}


if __name__ == "__main__":
    main()
