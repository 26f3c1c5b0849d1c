"""A job in which most fixes find something to change. Prints what is in force in its last step."""

import gc
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FROZEN = gc.get_freeze_count()  # by whatever started this process
torch.manual_seed(1)
torch.set_num_threads(3)
torch.autograd.set_detect_anomaly(True)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 4, (64,)))
loader = DataLoader(data, 8, shuffle=True)
extra = DataLoader(data, 4, shuffle=True)


def main():
    """The job."""
    given = {}
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    weights = torch.optim.AdamW(model.parameters(), foreach=True)
    head = torch.optim.SGD(model[3].parameters(), lr=0.01, foreach=True)
    model.register_forward_pre_hook(lambda _, batch: given.update(last=is_last(batch[0])))
    for _ in range(2):
        for batch, labels in loader:
            out = model(batch)
            loss = nn.functional.cross_entropy(out, labels)
            loss.backward()
            weights.step()
            head.step()
            weights.zero_grad(set_to_none=False)
            head.zero_grad(set_to_none=False)
            dropped = [each.grad is None for each in model.parameters()]
        next(iter(extra))
        with torch.no_grad():
            evaluated = str(model(batch).dtype)
    show(model, (weights, head), {**given, "dtype": str(out.dtype), "evaluated": evaluated, "dropped": dropped})


def is_last(tensor):
    """Whether channels are innermost."""
    return tensor.is_contiguous(memory_format=torch.channels_last)


def show(model, optimizers, seen):
    """One line of what is in force."""
    line = {
        "anomaly": torch.is_anomaly_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "denormal": (torch.full((8,), 1e-30) * 1e-10).max().item(),
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic],
        "frozen": gc.get_freeze_count() > FROZEN,
        "loaders": [[each.num_workers, each.persistent_workers] for each in (loader, extra)],
        "optimizers": [[each.param_groups[0][name] for name in ("foreach", "fused")] for each in optimizers],
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "threshold": gc.get_threshold()[0],
        "weight": is_last(model[0].weight),
        **seen,
    }
    print("SEEN " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
