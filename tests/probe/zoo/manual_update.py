"""No optimizer object: parameters are moved by hand; 30 steps."""

import torch
from finger import Finger

torch.manual_seed(10)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
finger = Finger()
for _ in range(30):
    inputs = torch.randn(16, 16)
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    finger.loss(loss)
finger.show(*model.parameters())
