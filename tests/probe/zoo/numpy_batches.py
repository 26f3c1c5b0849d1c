"""No DataLoader: batches are cut out of a numpy array, between forward and backward; 40 steps, two evaluations."""

import numpy as np
import torch
from finger import Finger

torch.manual_seed(4)
random = np.random.default_rng(4)
tokens = random.integers(0, 50, 4000)
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Flatten(), torch.nn.Linear(16 * 8, 50))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
finger = Finger()


def get_batch(size):
    """Cuts a batch out of the tokens."""
    starts = random.integers(0, len(tokens) - 9, size)
    inputs = torch.from_numpy(np.stack([tokens[start : start + 8] for start in starts]))
    return inputs, torch.from_numpy(np.stack([tokens[start + 8] for start in starts]))


inputs, targets = get_batch(16)
for number in range(1, 41):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    inputs, targets = get_batch(16)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    finger.loss(loss)
    if number % 15 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                finger.loss(torch.nn.functional.cross_entropy(model(inputs), targets))
        model.train()
finger.show(*model.parameters())
