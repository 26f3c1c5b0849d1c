"""A training job with a leak: after every step a fixed batch goes through the model, and the output is kept for a plot,
with all that autograd saves for a backward that never comes.

    steptime run -- python examples/kept_outputs.py
"""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
monitored = torch.randn(64, 256)
outputs = []

for _ in range(3000):
    loss = model(torch.randn(256, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(model(monitored))
