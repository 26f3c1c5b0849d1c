"""A Sequential of torch's own over images: shuffled loader, evaluation, AdamW. Prints what it sees at each step."""

import gc
import json
import random

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FROZEN = gc.get_freeze_count()  # by whatever started this process
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 4))
seen = {}
model[0].register_forward_pre_hook(lambda _, given: seen.update(last=given[0].is_contiguous(memory_format=LAST)))
LAST = torch.channels_last


def main():
    """The job."""
    data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    evaluation = DataLoader(data, batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (batch, labels) in enumerate(item for _ in range(8) for item in loader):
        optimizer.zero_grad()
        out = model(batch)
        loss = nn.functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        if step == 2:
            with torch.no_grad():
                seen["evaluated"] = str(model(next(iter(evaluation))[0]).dtype)
        if step == 4:  # once: it goes through all that is frozen
            seen["frozen"] = gc.get_freeze_count() > FROZEN
        show(step, batch, out, loss, optimizer, loader, evaluation)
    print("the job's own end")


def show(step, batch, out, loss, optimizer, loader, evaluation):
    """One line of what is in force."""
    line = {
        "step": step + 1,
        "batch": float(batch.double().sum()),
        "size": len(batch),
        "dtype": str(out.dtype),
        "loss": str(loss.dtype),
        "value": loss.item(),
        "fused": optimizer.param_groups[0].get("fused"),
        "foreach": optimizer.param_groups[0].get("foreach"),
        "workers": [loader.num_workers, evaluation.num_workers],
        "sizes": [loader.batch_size, evaluation.batch_size],
        "threads": torch.get_num_threads(),
        "weight_last": model[0].weight.is_contiguous(memory_format=LAST),
        "precision": torch.get_float32_matmul_precision(),
        "random": [random.random(), numpy.random.default_rng().random(), numpy.random.random()],
        **seen,
    }
    print("SEEN " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
