"""The norm of every parameter's gradient is read in every step; healthy: their sum stays on the device until the end.
never-wait: torch raises where it would wait for the device."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--never-wait", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
blocks = [layer for _ in range(24) for layer in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
model = nn.Sequential(*blocks, nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(8192, 512, device="cuda"), torch.randint(10, (8192,), device="cuda")
running, kept = 0.0, torch.zeros((), device="cuda")
if arguments.never_wait:
    torch.cuda.set_sync_debug_mode("error")
for _ in range(300):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if arguments.healthy:
        kept += torch.stack(torch._foreach_norm([parameter.grad for parameter in model.parameters()])).sum()
    else:
        running += sum(parameter.grad.norm().item() for parameter in model.parameters())  # fault
torch.cuda.set_sync_debug_mode("default")
print(running, kept.item())
