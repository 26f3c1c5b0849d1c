"""Each batch is copied from pageable memory; healthy: all of them are on the device."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(256, 3, 128, 128), torch.randint(10, (256,), device="cuda")
if arguments.healthy:
    images = images.cuda()
for _ in range(300):
    batch = images.to("cuda")  # fault
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
