"""Regression with a multilayer perceptron, trained by a preconditioned optimizer of our own (Shampoo)."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)
torch.set_num_threads(1)


class Preconditioner:
    """Statistics of one side of a gradient and their inverse root."""

    def __init__(self, size, order, epsilon):
        self.order, self.epsilon = order, epsilon
        self.statistics = torch.zeros(size, size)
        self.root = torch.eye(size)

    def observe(self, flat, decay):
        self.statistics.mul_(decay).addmm_(flat, flat.T, alpha=1 - decay)

    def refresh(self):
        values, vectors = torch.linalg.eigh(self.statistics)
        values = values.clamp_min(0).add_(self.epsilon * values[-1].clamp_min(1e-12))
        self.root = vectors @ torch.diag(values.pow(-1 / (2 * self.order))) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, momentum=0.9, decay=0.95, epsilon=1e-4, update_freq=1):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay, epsilon=epsilon, update_freq=update_freq))

    def _prepare(self, p, group):
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["momentum"] = torch.zeros_like(p)
            state["sides"] = [Preconditioner(size, p.dim(), group["epsilon"]) for size in p.shape]
        return state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self._prepare(p, group)
                direction = self._precondition(p.grad, state, group)
                direction *= p.grad.norm() / direction.norm().clamp_min(1e-12)
                state["momentum"].mul_(group["momentum"]).add_(direction)
                p.add_(state["momentum"], alpha=-group["lr"])
                state["step"] += 1

    def _precondition(self, grad, state, group):
        for axis, side in enumerate(state["sides"]):
            flat = grad.transpose(0, axis).flatten(1) if grad.dim() > 1 else grad[:, None]
            side.observe(flat, group["decay"])
            if state["step"] % group["update_freq"] == 0:
                side.refresh()
        direction = grad
        for axis, side in enumerate(state["sides"]):
            direction = torch.tensordot(direction, side.root, dims=([axis], [0])).movedim(-1, axis)
        return direction


def waves(count):
    x = 2 * torch.rand(count, 8) - 1
    return x, torch.sin(3 * x).cumsum(1)[:, ::2] * x[:, 1::2]


net = nn.Sequential(
    nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4)
)
optimizer = Shampoo(net.parameters(), lr=0.02, update_freq=20)
STEPS, start = 160, time.perf_counter()
for step in range(1, STEPS + 1):
    x, y = waves(1024)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
