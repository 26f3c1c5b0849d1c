"""A plain loop: DataLoader, scheduler, evaluation after each of three epochs of ten batches."""

import torch
from finger import Finger
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(160, 16)
targets = inputs[:, :4].argmax(1)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(inputs[:64], targets[:64]), batch_size=32)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
finger = Finger()
for _ in range(3):
    model.train()
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), labels)
        loss.backward()
        optimizer.step()
        finger.loss(loss)
    schedule.step()
    model.eval()
    with torch.no_grad():
        for batch, labels in held_out:
            finger.loss(criterion(model(batch), labels))
finger.show(*model.parameters())
