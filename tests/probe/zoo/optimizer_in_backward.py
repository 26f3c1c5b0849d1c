"""Each parameter has its own optimizer, which steps in the middle of the backward; 25 steps."""

import torch
from finger import Finger

torch.manual_seed(8)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()}


def update(parameter):
    """Steps as soon as the gradient is there."""
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
finger = Finger()
for _ in range(25):
    inputs = torch.randn(16, 16)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    loss.backward()
    finger.loss(loss)
finger.show(*model.parameters())
