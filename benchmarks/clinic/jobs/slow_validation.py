"""Nothing is wrong with the training step; the validation after each epoch is slow, and must not be blamed for it."""

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(2560, 512), torch.randint(10, (2560,)))
training = DataLoader(data, batch_size=64, shuffle=True)
validation = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done = 0
while done < steps:
    model.train()
    for features, labels in training:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        lap()
        done += 1
    model.eval()
    with torch.no_grad():
        for _ in range(amount):
            correct = sum((model(features).argmax(1) == labels).sum() for features, labels in validation)
