"""Motion of a robot arm as a learned function whose slope stays small."""

import time

import torch
from torch import nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F

torch.manual_seed(9)
torch.set_num_threads(1)
INPUTS, OUTPUTS, BATCH, STEPS = 6, 3, 24, 200


class Motion(nn.Module):
    """Place of the hand from the angles of the joints."""

    def __init__(self, width=224):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, OUTPUTS)
        )

    def forward(self, angles):
        return self.layers(angles)


class Cost:
    """Error of the places, and the mean slope of the motion at the same angles."""

    def __init__(self, motion, weight=1e-2):
        self.motion, self.weight = motion, weight

    def slopes(self, angles):
        """Derivatives of each sample's outputs by its own inputs, batch x OUTPUTS x INPUTS."""
        every = jacobian(self.motion, angles, create_graph=True)  # culprit
        return torch.stack([every[i, :, i] for i in range(len(angles))])  # culprit

    def __call__(self, angles, places):
        error = F.mse_loss(self.motion(angles), places)
        return error + self.weight * self.slopes(angles).square().sum((1, 2)).mean()  # culprit-too


def recorded():
    angles = torch.rand(BATCH, INPUTS) * 2 - 1
    turned = angles.cumsum(1)
    return angles, torch.stack([turned.cos().sum(1), turned.sin().sum(1), angles.prod(1)], 1) / INPUTS


motion = Motion()
cost = Cost(motion)
optimizer = torch.optim.Adam(motion.parameters(), 1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    angles, places = recorded()
    loss = cost(angles, places)  # culprit-too
    optimizer.zero_grad()
    loss.backward()  # culprit-too
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.5f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
