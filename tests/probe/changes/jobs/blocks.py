"""Repeated blocks, no DataLoader, debug switches left on, zeros for gradients, a scaler and clipping."""

import json

import torch
from torch import nn

torch.manual_seed(3)


class Block(nn.Module):
    """A residual block; counts its forwards."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.wide, self.drop, self.narrow = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)

    def forward(self, given):
        """One more call."""
        Block.calls += 1
        return given + self.narrow(self.drop(torch.relu(self.wide(given))))


class Net(nn.Module):
    """Three of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, given):
        """In a row."""
        for block in self.blocks:
            given = block(given)
        return self.head(given)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.autograd.set_detect_anomaly(True)
torch.use_deterministic_algorithms(True)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(60):
    optimizer.zero_grad(set_to_none=False)
    cleared = net.head.weight.grad is None
    before = net.head.weight.detach().clone()
    Block.calls = 0
    loss = net(torch.randn(4, 8)).square().mean()
    scaler.scale(loss).backward()
    norm = net.head.weight.grad.norm().item() / scaler.get_scale()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    line = {
        "step": step + 1,
        "value": loss.item(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cleared": cleared,
        "calls": Block.calls,
        "moved": not torch.equal(before, net.head.weight),
        "norm": norm,
        "autocast": torch.is_autocast_enabled("cpu"),
    }
    print("SEEN " + json.dumps(line), flush=True)
print("the job's own end")
