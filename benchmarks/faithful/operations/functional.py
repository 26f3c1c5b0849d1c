"""Functional calls, transforms, modes and hooks: what is seen of a call is what torch itself does."""

import collections
import copy

import torch
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vjp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from training import Net, halved, loss_of, main, operation, train


@operation()
def functional_calls(model, optimizer, step, batch):
    half = {name: value * 0.5 for name, value in model.named_parameters()}
    return functional_call(model, half, (batch[0],)), model(batch[0])


@operation()
def gradients_of_each_sample(model, optimizer, step, batch):
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, row, wanted):
        return torch.nn.functional.mse_loss(functional_call(model, weights, (row.unsqueeze(0),)).squeeze(0), wanted)

    return vmap(grad(loss), in_dims=(None, 0, 0))(weights, *batch)


@operation()
def ensemble(model, optimizer, step, batch):
    models = [copy.deepcopy(model), halved(copy.deepcopy(model))]
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    return vmap(lambda w, b, rows: functional_call(base, (w, b), (rows,)), (0, 0, None))(weights, buffers, batch[0])


@operation()
def forward_and_backward_mode(model, optimizer, step, batch):
    out, along = jvp(model, (batch[0],), (torch.ones_like(batch[0]),))
    _, back = vjp(model, batch[0])
    return out, along, back(torch.ones_like(out)), jacrev(model)(batch[0][:1])


@operation()
def second_derivatives(model, optimizer, step, batch):
    rows = batch[0][:2].clone().requires_grad_()
    force = torch.autograd.grad(model(rows).square().sum(), rows, create_graph=True)[0]
    second = torch.autograd.grad(force.sum(), list(model.parameters()), allow_unused=True)
    one = hessian(lambda row: model(row).square().sum())(batch[0][0])
    return force, [each for each in second if each is not None], one


@operation()
def old_functional_interface(model, optimizer, step, batch):
    def answer(rows):
        return model(rows).square().sum()

    functional = torch.autograd.functional
    return functional.hvp(answer, batch[0], batch[0]), functional.jacobian(model, batch[0][:1])


class Functions(TorchFunctionMode):
    """Notes each function of torch that is called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(str(getattr(function, "__qualname__", None) or getattr(function, "__name__", function)))
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def _listened(mode, model, optimizer, batch):
    with mode:
        loss = train(model, optimizer, batch)
    return {"loss": loss, "names": mode.names, "count": dict(collections.Counter(mode.names))}


@operation(trains=False)
def function_mode_of_the_job(model, optimizer, step, batch):
    return _listened(Functions(), model, optimizer, batch)


@operation(trains=False)
def dispatch_mode_of_the_job(model, optimizer, step, batch):
    return _listened(Operators(), model, optimizer, batch)


CALLS = collections.Counter()


class Counted(torch.Tensor):
    """A tensor of the job's own kind, which sees each function that it is given to."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        CALLS[getattr(function, "__name__", str(function))] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@operation(trains=False)
def tensors_of_an_own_kind(model, optimizer, step, batch):
    loss = train(model, optimizer, (batch[0].as_subclass(Counted), batch[1]))
    found = dict(CALLS)
    CALLS.clear()
    return {"loss": loss.as_subclass(torch.Tensor), "calls": found}


@operation()
def hooks_on_everything(model, optimizer, step, batch):
    reported = []
    module = torch.nn.modules.module
    handles = [
        module.register_module_forward_pre_hook(lambda each, _: reported.append(("pre", type(each).__name__))),
        module.register_module_forward_hook(lambda each, _, out: reported.append(("post", type(each).__name__))),
        module.register_module_full_backward_hook(lambda each, *_: reported.append(("back", type(each).__name__))),
        model.register_forward_pre_hook(lambda each, args: (args[0] * 2,)),
        model.register_full_backward_hook(lambda each, gave, got: reported.append(len(got))),
        model.first.weight.register_hook(lambda gradient: gradient * 0.5),
    ]
    loss = loss_of(model, batch)
    loss.backward()
    for handle in handles:
        handle.remove()
    return reported, loss, [each.grad for each in model.parameters()]


@operation()
def saved_tensors(model, optimizer, step, batch):
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: packed.append(each.shape) or each, lambda each: each):
        loss_of(model, batch).backward()
    with torch.autograd.graph.save_on_cpu():
        loss_of(model, batch).backward()
    again = torch.utils.checkpoint.checkpoint(model, batch[0], use_reentrant=False)
    old = torch.utils.checkpoint.checkpoint(model, batch[0].clone().requires_grad_(), use_reentrant=True)
    (again + old).sum().backward()
    return packed, [each.grad for each in model.parameters()]


@operation()
def who_holds_what(model, optimizer, step, batch):
    """The names in all objects of the training are those of torch."""
    module = torch.nn.Module
    calls = (module.__call__, module._call_impl, module._wrapped_call_impl, type(model).__call__)
    return {
        "modules": [(name, sorted(vars(each))) for name, each in model.named_modules()],
        "class": [(each.__name__, sorted(vars(each))) for each in (Net, torch.nn.Linear, torch.optim.SGD)],
        "compiled call": model._compiled_call_impl is None,
        "optimizer": (sorted(vars(optimizer)), optimizer.step.__name__, type(optimizer.step).__name__),
        "parameters": [(sorted(vars(each)), each._backward_hooks is None) for each in model.parameters()],
        "calls": [(each.__module__, each.__qualname__, each.__code__.co_filename) for each in calls],
        "public": [
            (each.__module__, each.__qualname__, type(each).__name__, each.__code__.co_varnames)
            for each in (torch.autograd.backward, torch.autograd.grad, torch.save, torch.load, torch.Tensor.backward)
        ],
        "directory": (len(dir(model)), len(dir(torch)), len(dir(torch.nn.Module)), len(dir(torch.Tensor))),
    }


if __name__ == "__main__":
    main()
