"""Matrix products in float32 off the matrix units; tf32: on them; healthy: in bfloat16."""

import argparse
import contextlib

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--tf32", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = arguments.tf32
model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.randn(4096, 4096, device="cuda")
precision = torch.autocast("cuda", torch.bfloat16) if arguments.healthy else contextlib.nullcontext()
for _ in range(200):
    optimizer.zero_grad()
    with precision:
        loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
