"""What changes a model in place or puts something around it: layers, classes, weights and calls."""

import copy
import importlib.util
import types

import torch
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from training import DEAR, Convolutions, Net, halved, main, operation, train


@operation()
def parametrizations_on_and_off(model, optimizer, step, batch):
    if step % 4 == 1:
        parametrizations.weight_norm(model.first)
    elif step % 4 == 3:
        parametrize.remove_parametrizations(model.first, "weight", leave_parametrized=True)
    return model(batch[0]), type(model.first).__name__, sorted(vars(model.first)), copy.deepcopy(model)(batch[0])


class Symmetric(torch.nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@operation()
def own_parametrization_of_a_copy(model, optimizer, step, batch):
    other = copy.deepcopy(model)
    other.add_module("square", torch.nn.Linear(4, 4))
    parametrize.register_parametrization(other.square, "weight", Symmetric())
    parametrizations.orthogonal(other.last)
    parametrizations.spectral_norm(other.first)
    with parametrize.cached():
        return other.square(other(batch[0])), model(batch[0])


@operation()
def old_weight_and_spectral_norm(model, optimizer, step, batch):
    other = copy.deepcopy(model)
    weight_norm(other.first)
    spectral_norm(other.last)
    answers = [other(batch[0]) for _ in range(2)]
    torch.nn.utils.remove_weight_norm(other.first)
    torch.nn.utils.remove_spectral_norm(other.last)
    return answers, other(batch[0]), model(batch[0])


@operation(lambda: spectral_norm(torch.nn.Linear(16, 4)))
def spectral_norm_that_is_trained(model, optimizer, step, batch):
    other = spectral_norm(torch.nn.Linear(16, 4))
    other.load_state_dict(model.state_dict())
    return model(batch[0]), halved(other)(batch[0])


@operation()
def pruning(model, optimizer, step, batch):
    if step % 6 == 2:
        prune.l1_unstructured(model.first, "weight", 0.3)
    elif step % 6 == 5:
        prune.remove(model.first, "weight")
    other = halved(copy.deepcopy(Net()))
    prune.ln_structured(other.first, "weight", 0.5, n=2, dim=0)
    return model(batch[0]), model.state_dict(), other(batch[0])


class Adapter(torch.nn.Module):
    """A layer with a low-rank update next to it, by hand."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = torch.nn.Linear(base.in_features, 2, False), torch.nn.Linear(2, base.out_features, False)

    def forward(self, rows):
        return self.base(rows) + self.up(self.down(rows))


@operation()
def adapters_by_hand(model, optimizer, step, batch):
    """Injected into the model that is trained, trained, and merged again."""
    if isinstance(model.first, Adapter):
        base = model.first.base
        with torch.no_grad():
            base.weight += model.first.up.weight @ model.first.down.weight
        model.first = base
    else:
        model.first = Adapter(model.first)
        optimizer.add_param_group({"params": [*model.first.down.parameters(), *model.first.up.parameters()]})
        if len(optimizer.param_groups) > 3:
            del optimizer.param_groups[1]
    return model(batch[0]), copy.deepcopy(model)(batch[0]), len(optimizer.param_groups)


@operation()
def swapped_submodules(model, optimizer, step, batch):
    model.norm = (torch.nn.Identity(), torch.nn.LayerNorm(32))[step % 2]
    if step % 5 == 4:
        model.last = copy.deepcopy(model.last)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    return model(batch[0]), [name for name, _ in model.named_modules()]


class Louder(Net):
    def forward(self, rows):
        return 2 * super().forward(rows)


@operation()
def other_class(model, optimizer, step, batch):
    """__class__ is assigned in the middle of the training, and back."""
    model.__class__ = (Louder, Net)[step % 2]
    other = copy.deepcopy(model)
    other.__class__ = Net
    return model(batch[0]), halved(other)(batch[0]), type(model).__name__


class Forwarding(torch.nn.Module):
    """Answers with the attributes of what it holds, as wrappers of frameworks do."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner if inner is not None else Net()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, rows):
        return self.inner(rows)


@operation(Forwarding)
def wrapper_with_getattr(model, optimizer, step, batch):
    around = Forwarding(model)
    return around(batch[0]), halved(copy.deepcopy(around))(batch[0]), around.first.weight, sorted(vars(model))


class Plain:
    """Holds a model, and is none."""

    def __init__(self, inner):
        self.__dict__["inner"] = inner

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __call__(self, *words):
        return self.inner(*words)


@operation()
def proxy_that_is_no_module(model, optimizer, step, batch):
    proxy = Plain(model)
    return proxy(batch[0]), proxy.first(batch[0]), proxy.forward(batch[0]), proxy._compiled_call_impl is None


class OwnCall(Net):
    calls = 0

    def __call__(self, *words, **named):
        OwnCall.calls += 1
        return super().__call__(*words, **named) + 1


@operation(OwnCall)
def overridden_call(model, optimizer, step, batch):
    return model(batch[0]), halved(copy.deepcopy(model))(batch[0]), OwnCall.calls


SET = []


class Guarded(Net):
    """Refuses attributes that it does not know, and tells what was set."""

    def __setattr__(self, name, value):
        SET.append(name)
        super().__setattr__(name, value)

    def __getattribute__(self, name):
        if name.startswith("_steptime"):
            raise RuntimeError("a name of somebody else's")
        return super().__getattribute__(name)


@operation(Guarded)
def guarded_attributes(model, optimizer, step, batch):
    model.mark = step
    found, SET[:] = list(SET), []
    return found, model(batch[0]), halved(copy.deepcopy(model))(batch[0])


@operation()
def forward_replaced_on_the_instance(model, optimizer, step, batch):
    """As Accelerate does it, and back."""
    if step % 2:
        inner = model.forward
        model.forward = types.MethodType(lambda self, rows: 3 * inner(rows), model)
    elif "forward" in vars(model):
        del model.forward
    return model(batch[0]), sorted(vars(model))


class Patched(Net):
    pass


@operation(Patched)
def call_replaced_on_the_class(model, optimizer, step, batch):
    original = torch.nn.Module.__call__
    if step % 2:
        Patched.__call__ = lambda self, rows: original(self, rows) * 2
    elif "__call__" in vars(Patched):
        del Patched.__call__
    return model(batch[0]), copy.deepcopy(model)(batch[0])


@operation()
def call_replaced_on_all_modules(model, optimizer, step, batch):
    """As tools of others do it, for a while."""
    original, calls = torch.nn.Module.__call__, []

    def call(self, *words, **named):
        calls.append(type(self).__name__)
        return original(self, *words, **named)

    torch.nn.Module.__call__ = call
    try:
        answer = model(batch[0])
    finally:
        torch.nn.Module.__call__ = original
    return answer, calls, model(batch[0])


@operation(Convolutions)
def fused_layers(model, optimizer, step, batch):
    other = copy.deepcopy(model).eval()
    other.convolution = fuse_conv_bn_eval(other.convolution, other.norm)
    other.norm = torch.nn.Identity()
    return other(batch[0]), model(batch[0])


@operation(lambda: torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)))
def layers_come_and_go(model, optimizer, step, batch):
    if step % 8 == 3:
        model.insert(1, torch.nn.Linear(8, 8))
        optimizer.add_param_group({"params": model[1].parameters()})
    elif step % 8 == 7:
        del model[1]
        del optimizer.param_groups[1]
    return model(batch[0]), len(model), model[:1](batch[0])


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.LazyLinear(8), torch.nn.LazyLinear(4)

    def forward(self, rows):
        return self.last(torch.relu(self.first(rows)))


@operation()
def lazy_layers(model, optimizer, step, batch):
    other = Lazy()
    answer = other(batch[0])
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), batch)
    return answer, other(batch[0]), type(other.first).__name__


@operation()
def skipped_and_reset_weights(model, optimizer, step, batch):
    other = torch.nn.utils.skip_init(torch.nn.Linear, 16, 4)
    torch.nn.init.orthogonal_(other.weight)
    torch.nn.init.zeros_(other.bias)
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())
    names = []
    model.apply(lambda module: names.append(type(module).__name__))
    return other(batch[0]), names, model(batch[0]), repr(model), model.extra_repr()


if importlib.util.find_spec("peft"):

    @operation(steps=DEAR)
    def adapters_by_peft(model, optimizer, step, batch):
        import peft

        options = peft.LoraConfig(r=2, target_modules=["first", "last"], init_lora_weights=False)
        other = peft.get_peft_model(copy.deepcopy(model), options)
        theirs = torch.optim.SGD([each for each in other.parameters() if each.requires_grad], lr=0.1)
        loss = train(other, theirs, batch) if step % 10 == 1 else 0
        state = peft.get_peft_model_state_dict(other)
        return loss, other(batch[0]), state, other.merge_and_unload()(batch[0]), model(batch[0])

    class Trained(Net):
        pass

    @operation(Trained, steps=DEAR)
    def adapters_by_peft_in_the_trained_model(model, optimizer, step, batch):
        import peft

        if not hasattr(model, "peft_config"):
            options = peft.LoraConfig(r=2, target_modules=["first"], init_lora_weights=False)
            peft.inject_adapter_in_model(options, model)
            optimizer.add_param_group({"params": [each for name, each in model.named_parameters() if "lora" in name]})
        return model(batch[0]), halved(copy.deepcopy(model))(batch[0]), peft.get_peft_model_state_dict(model)


if __name__ == "__main__":
    main()
