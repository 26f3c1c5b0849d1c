"""A change that is switched on, trained under, and off again, next to a twin that never knew of it: prints what
of the two is not the same afterwards, bit for bit, and whether the change was felt while it was on.

    python switched.py KIND ARGUMENTS(JSON)
"""

import json
import sys

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as first_imported  # noqa: F401 - as users do

from steptime.probe.changes.trained_state import TrainedState
from steptime.probe.changes.trial import make_applier


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 64, 4)

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.conv, x, use_reentrant=False)
        x = functional.dropout(torch.relu(self.norm(x)), 0.1, self.training)
        tokens = x.flatten(2).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.head(attended.flatten(1))


def job():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)


def steps(model, optimizer, count, applier=None):
    losses = []
    for _ in range(count):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(4, (4,))
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        tensors = applier.before_backward(loss) if applier is not None else loss
        tensors.backward()
        if applier is not None:
            applier.after_backward()
            applier.before_update(optimizer)
        optimizer.step()
        if applier is not None:
            applier.boundary(len(losses) + 1)
        losses.append(loss.item())
    return losses


def looks(model, optimizer):
    """All that a change may touch."""
    tensors = {f"model.{name}": each for name, each in model.state_dict(keep_vars=True).items()}
    for number, (parameter, state) in enumerate(optimizer.state.items()):
        tensors |= {f"state.{number}.{name}": each for name, each in state.items()}
        tensors[f"grad.{number}"] = parameter.grad
    groups = [{name: each for name, each in group.items() if name != "params"} for group in optimizer.param_groups]
    switches = {
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
        ),
        "sdpa": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "autocast": torch.is_autocast_enabled("cpu"),
        "checks": sys.argv[1] != "compile" and torch.distributions.Distribution._validate_args,  # TorchDynamo ends them
        "scaling": getattr(optimizer, "_step_supports_amp_scaling", None),
    }
    forms = {name: (each.stride(), str(each.dtype), str(each.device)) for name, each in tensors.items()}
    values = {name: each.detach().flatten().tolist() for name, each in tensors.items()}
    return {"groups": str(groups), **switches, **forms}, values


def main():
    kind, arguments = sys.argv[1], json.loads(sys.argv[2])
    if kind == "deterministic-off":
        torch.use_deterministic_algorithms(True, warn_only=True)
    applier = make_applier({"kind": kind, "arguments": arguments})
    assert applier.switchable
    applier.prepare()
    twin = job()
    expected = steps(*twin, 2), steps(*twin, 3)
    untouched = looks(*twin)
    model, optimizer = job()
    applier.optimizers = lambda: [optimizer]
    seen = [steps(model, optimizer, 1, applier)]
    applier.top_module(model)
    seen[0] += steps(model, optimizer, 1, applier)
    kept, before = TrainedState([model], [optimizer]), looks(model, optimizer)
    applier.on()
    under = looks(model, optimizer)
    steps(model, optimizer, 3, applier)
    applier.off()
    kept.restore()
    after = looks(model, optimizer)
    seen.append(steps(model, optimizer, 3, applier))
    ends = looks(model, optimizer)
    wrong = [name for name in before[0] if before[0][name] != after[0][name]]
    wrong += [name for name in before[1] if before[1][name] != after[1][name] and not name.startswith("grad")]
    wrong += [name for name in untouched[0] if untouched[0][name] != ends[0][name]]
    wrong += [name for name in untouched[1] if untouched[1][name] != ends[1][name]]
    felt = [name for name in before[0] if before[0][name] != under[0][name]]
    print(json.dumps({
        "wrong": wrong,
        "losses": [list(expected) == [list(each) for each in seen], expected, seen],
        "felt": felt,
        "exercised": applier.exercised,
        "detail": applier.detail,
    }))  # fmt: skip


main()
