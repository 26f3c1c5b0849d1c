"""Jobs with infinities that do no harm, the twins of those in planted.py: python healthy.py TWIN."""

import sys

import torch
from planted import LATER, Network, Samples, classify
from torch import nn
from torch.nn import functional


def attention_mask():
    model, query = Network(), nn.Linear(8, 8)
    optimizer = torch.optim.Adam([*model.parameters(), *query.parameters()], lr=0.01)
    causal = torch.triu(torch.full((6, 6), float("-inf")), diagonal=1)
    for _ in range(12):
        x = torch.randn(4, 6, 8)
        weights = torch.softmax(query(x) @ x.transpose(1, 2) + causal, dim=-1)
        loss = model(weights @ x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def harmless_infinity():
    def change(step, model, inputs, targets):
        gate = 1 / (1 + torch.exp(200 * model(inputs).detach().abs()))
        return functional.cross_entropy(model(inputs) + gate, targets)

    classify(Samples(), change)


def log_of_mask():
    def change(step, model, inputs, targets):
        visible = torch.ones(8, 3)
        visible[:, (step % 3)] = 0
        visible[torch.arange(8), targets] = 1
        return functional.cross_entropy(model(inputs) + visible.log(), targets)

    classify(Samples(), change)


def ignored_in_part():
    def change(step, model, inputs, targets):
        targets = targets.clone()
        targets[: step % 7] = -100
        return functional.cross_entropy(model(inputs), targets)

    classify(Samples(), change)


def square_root():
    def change(step, model, inputs, targets):
        x = model(inputs)
        if step == LATER:
            x = x * (torch.arange(8) > 0)[:, None]
        return torch.sqrt(x.square().sum(dim=1) + 1e-8).mean()

    classify(Samples(), change)


def scaled():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    for _ in range(12):
        loss = model(torch.randn(8, 8)).abs().mean() * 100
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def nothing_trained():
    Network()(torch.randn(2, 8))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
