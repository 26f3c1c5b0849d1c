"""Learning to learn: a network that adapts to sine waves within a step, with gradients through the adaptation."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, DEPTH, TASKS, SHOTS, RATE, UPDATES = 40, 6, 6, 10, 0.01, 250


class Layer(nn.Module):
    def __init__(self, width_in):
        super().__init__()
        self.linear, self.norm, self.act = nn.Linear(width_in, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()

    def forward(self, x):
        return self.act(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(Layer(WIDTH if i else 1) for i in range(DEPTH)))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.last(self.body(x))


def put_parameters(module, new):
    """Replace the parameters of a module by other tensors, by the order of parameters()."""
    for part in module.modules():
        for name, old in part._parameters.items():
            if old is not None:
                part._parameters[name] = next(new)


def shell(module):
    """A copy of a module and of its parts that still has the tensors of the original."""
    new = module.__new__(type(module))
    new.__dict__ = {**module.__dict__, "_parameters": dict(module._parameters), "_buffers": dict(module._buffers)}
    new._modules = {name: shell(part) for name, part in module._modules.items()}
    return new


def clone_module(module):
    """A module of the same parts, whose parameters are functions of those of the original."""
    clone = shell(module)
    put_parameters(clone, iter([each.clone() for each in module.parameters()]))
    return clone


def adapt(learner, x, y):
    loss = F.mse_loss(learner(x), y)
    parameters = list(learner.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    put_parameters(learner, iter([p - RATE * g for p, g in zip(parameters, gradients)]))


def task():
    height, phase = 0.1 + 4.9 * torch.rand(()), torch.pi * torch.rand(())
    x = 10 * torch.rand(2 * SHOTS, 1) - 5
    return (x, height * torch.sin(x + phase))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
start = time.perf_counter()
for update in range(1, UPDATES + 1):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(TASKS):
        x, y = task()
        learner = clone_module(net)
        adapt(learner, x[:SHOTS], y[:SHOTS])
        loss = F.mse_loss(learner(x[SHOTS:]), y[SHOTS:]) / TASKS
        loss.backward()
        total += loss.item()
    optimizer.step()
    if update % 50 == 0:
        print(f"update {update}: loss {total:.3f}", flush=True)
print(f"{UPDATES} steps, {1e3 * (time.perf_counter() - start) / UPDATES:.2f} ms/step")
