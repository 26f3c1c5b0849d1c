"""Copies, pickles, saves and traces its model and an average of it behind each step, and checks what they compute."""

import copy
import io
import pickle

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


torch.manual_seed(0)
model = Net()
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(30):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), torch.randint(2, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(average, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        assert not copied(x).any()
        assert torch.equal(unpickled(x), model(x))
        assert torch.equal(loaded(x), average(x))
    for module in (average, model):  # raises where the graph has anything of ours
        assert torch.allclose(torch.jit.trace(module, x)(x), module(x))
    torch.jit.script(model)
print("the end")
