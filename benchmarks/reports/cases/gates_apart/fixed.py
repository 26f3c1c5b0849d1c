"""The next letter of a text, by a recurrent network of long memory."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
torch.set_num_threads(1)
LETTERS, LENGTH, BATCH, WIDTH, STEPS = 40, 48, 16, 64, 150


class Cell(nn.Module):
    """Long short-term memory, all gates in one product."""

    def __init__(self, inputs, width):
        super().__init__()
        self.gates_x, self.gates_h = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x, h, memory):
        gates, new = (self.gates_x(x) + self.gates_h(h)).split([3 * WIDTH, WIDTH], 1)
        keep, write, show = torch.sigmoid(gates).chunk(3, 1)
        new = torch.tanh(new)
        memory = keep * memory + write * new
        return show * torch.tanh(memory), memory


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.cell = Cell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters):
        h = memory = torch.zeros(len(letters), WIDTH)
        shown = []
        for x in self.embed(letters).unbind(1):
            h, memory = self.cell(x, h, memory)
            shown.append(h)
        return self.out(torch.stack(shown, 1))


def texts():
    """Letters that mostly follow from the two before them."""
    letters = torch.randint(LETTERS, (BATCH, LENGTH + 1))
    for i in range(2, LENGTH + 1):
        follow = (letters[:, i - 1] + letters[:, i - 2]) % LETTERS
        letters[:, i] = torch.where(torch.rand(BATCH) < 0.8, follow, letters[:, i])
    return letters[:, :-1], letters[:, 1:]


speller = Speller()
optimizer = torch.optim.Adam(speller.parameters(), 3e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    letters, following = texts()
    loss = F.cross_entropy(speller(letters).flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
