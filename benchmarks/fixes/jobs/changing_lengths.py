"""Another length in every step, and a loop over it: each is compiled anew, until the compiler gives up."""

import torch
from torch import nn

torch.manual_seed(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.onward = nn.Linear(32, 128), nn.Linear(128, 128)

    def forward(self, sequence):
        state = sequence.new_zeros(sequence.shape[1], 128)
        for position in range(len(sequence)):
            state = torch.tanh(self.inward(sequence[position]) + self.onward(state))
        return state


model = nn.Sequential(Recurrent(), nn.Linear(128, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1500):
    batch = torch.randn(4 + step % 23, 32, 32)
    loss = (model(batch) - batch[-1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
