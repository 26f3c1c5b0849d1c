"""Three folds of eighty steps: each with a model and an optimizer of its own, made when it starts."""

import torch
from finger import Finger

torch.manual_seed(3)
finger = Finger()
inputs, targets = torch.randn(32, 16), torch.randn(32, 1)
for _ in range(3):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(80):
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        finger.loss(loss)
    finger.show(*model.parameters())
