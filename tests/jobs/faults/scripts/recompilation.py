"""A new length every few steps is compiled anew; healthy: one length."""

import argparse
import warnings

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

warnings.filterwarnings("ignore")
torch._dynamo.config.recompile_limit = 64
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.compile(backend="aot_eager", dynamic=False)
def compute_loss(batch, labels):
    return nn.functional.cross_entropy(model(batch), labels)


for step in range(arguments.steps):
    size = 128 if arguments.healthy else 96 + step // 4
    loss = compute_loss(torch.randn(size, 256), torch.randint(10, (size,)))  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
