"""Signs learned one after another: a shared body is meta-learned, a small head adapts to each sequence."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(12)
torch.set_num_threads(1)
FEATURES, SIGNS, SHOTS, ADAPT, RATE, STEPS = 128, 10, 12, 10, 0.1, 240


class Learner(nn.Module):
    """Weights in one list; the last two belong to the head."""

    def __init__(self, width=192):
        super().__init__()
        sizes = [FEATURES, width, width, width, SIGNS]
        self.weights = nn.ParameterList()
        for inputs, outputs in zip(sizes, sizes[1:]):
            layer = nn.Linear(inputs, outputs)
            self.weights.extend([layer.weight, layer.bias])

    def forward(self, signs, weights):
        for i in range(0, len(weights), 2):
            signs = F.linear(signs, weights[i], weights[i + 1])
            if i + 2 < len(weights):
                signs = F.relu(signs)
        return signs


class Meta:
    def __init__(self, learner):
        self.learner = learner
        self.optimizer = torch.optim.Adam(learner.parameters(), 1e-3)

    def adapted(self, signs, names, fast):
        """The weights after one step on some signs; the body stays as it is."""
        loss = F.cross_entropy(self.learner(signs, fast), names)
        gradients = torch.autograd.grad(loss, fast[-2:], create_graph=True)
        return fast[:-2] + [weight - RATE * grad for weight, grad in zip(fast[-2:], gradients)]

    def step(self, support, names, query, asked):
        fast = list(self.learner.weights)
        for chunk, name in zip(support.chunk(ADAPT), names.chunk(ADAPT)):
            fast = self.adapted(chunk, name, fast)
        loss = F.cross_entropy(self.learner(query, fast), asked)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def task():
    """New signs, in the order of their names, and all of them mixed to be asked."""
    centres = torch.randn(SIGNS, FEATURES)
    names = torch.arange(SIGNS).repeat(ADAPT * SHOTS // SIGNS)
    asked = torch.randint(SIGNS, (64,))
    return (
        centres[names] + 0.7 * torch.randn(len(names), FEATURES),
        names,
        centres[asked] + 0.7 * torch.randn(64, FEATURES),
        asked,
    )


meta = Meta(Learner())
start = time.perf_counter()
for step in range(1, STEPS + 1):
    loss = meta.step(*task())
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
