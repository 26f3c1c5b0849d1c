"""Nothing is trained: a model answers twenty batches."""

import torch
from finger import Finger
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
loader = DataLoader(TensorDataset(torch.randn(160, 16)), batch_size=8)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
finger = Finger()
with torch.inference_mode():
    for (batch,) in loader:
        finger.loss(model(batch).sum())
finger.show(*model.parameters())
