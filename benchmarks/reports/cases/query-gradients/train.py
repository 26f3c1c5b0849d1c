"""Model-agnostic meta-learning: sine waves from ten points each, second order."""

import time

import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, TASKS, SHOTS, QUERIES, INNER, INNER_LR = 160, 6, 40, 160, 3, 0.01


def new_weights():
    sizes = [(WIDTH, 1), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (1, WIDTH), (1,)]
    return [(torch.randn(s) / s[-1] ** 0.5 if len(s) > 1 else torch.zeros(s)).requires_grad_() for s in sizes]


def network(x, weights):
    for i in range(0, len(weights) - 2, 2):
        x = F.linear(x, weights[i], weights[i + 1]).tanh()
    return F.linear(x, weights[-2], weights[-1])


def adapted(weights, x, y):
    for _ in range(INNER):
        loss = F.mse_loss(network(x, weights), y)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        weights = [w - INNER_LR * g for w, g in zip(weights, gradients, strict=True)]
    return weights


def sine(n, phase, height):
    x = torch.rand(n, 1) * 10 - 5
    return x, height * torch.sin(x + phase)


def meta_step(weights, optimizer):
    losses, task_gradients = [], []
    for _ in range(TASKS):
        phase, height = torch.rand(1) * 3.14, torch.rand(1) * 4 + 0.1
        fast = adapted(weights, *sine(SHOTS, phase, height))
        x, y = sine(QUERIES, phase, height)
        loss = F.mse_loss(network(x, fast), y)
        loss.backward(retain_graph=True)  # culprit
        losses.append(loss)
        task_gradients.append(torch.autograd.grad(loss, fast, create_graph=True))  # culprit-too
    optimizer.zero_grad()  # culprit-too
    total = torch.stack(losses).mean()
    total.backward()
    optimizer.step()
    return total.item()


weights = new_weights()
optimizer = torch.optim.Adam(weights, lr=1e-3)
start, STEPS = time.perf_counter(), 140
for step in range(1, STEPS + 1):
    loss = meta_step(weights, optimizer)
    if step % 20 == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
