"""A job without end that says, before each step, what its weights and its batch add up to."""

import json

import torch


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    for _ in range(10**6):
        batch = torch.randn(4, 8)
        weight = sum(parameter.double().sum().item() for parameter in model.parameters())
        print("SEEN " + json.dumps({"weight": weight, "batch": batch.double().sum().item()}), flush=True)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
