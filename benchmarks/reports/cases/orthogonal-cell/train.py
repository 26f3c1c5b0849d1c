"""Copy-memory task with a recurrent net whose hidden matrix is kept orthogonal."""

import time

import torch
from torch import nn
from torch.nn.utils import parametrizations

torch.manual_seed(0)
torch.set_num_threads(1)
HIDDEN, BATCH, KEEP, WAIT, STEPS = 96, 64, 5, 15, 160


class Cell(nn.Module):
    def __init__(self, symbols, hidden):
        super().__init__()
        self.into = nn.Linear(symbols, hidden, bias=False)
        self.hidden = nn.Linear(hidden, hidden, bias=False)
        self.shift = nn.Parameter(torch.zeros(hidden))
        parametrizations.orthogonal(self.hidden, orthogonal_map="cayley")

    def forward(self, x, state):
        pre = self.into(x) + self.hidden(state)  # culprit-too
        return torch.sign(pre) * (pre.abs() + self.shift).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.read = Cell(10, HIDDEN), nn.Linear(HIDDEN, 10)

    def forward(self, tokens):
        x = nn.functional.one_hot(tokens, 10).float()
        state, states = x.new_zeros(len(x), HIDDEN), []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)  # culprit
            states.append(state)
        return self.read(torch.stack(states, 1))


def batch():
    body = torch.randint(1, 9, (BATCH, KEEP))
    blank = torch.zeros(BATCH, WAIT, dtype=torch.int64)
    mark = torch.full((BATCH, 1), 9)
    tokens = torch.cat([body, blank, mark, blank[:, : KEEP - 1]], 1)
    answer = torch.zeros_like(tokens)
    answer[:, -KEEP:] = body
    return tokens, answer


model = Model()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    tokens, answer = batch()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), answer.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    schedule.step()
    if step % 40 == 0:
        model.eval()
        with torch.no_grad():
            tokens, answer = batch()
            right = (model(tokens)[:, -KEEP:].argmax(-1) == answer[:, -KEEP:]).float().mean()
        model.train()
        print(f"step {step}: loss {loss.item():.4f} recalled {right.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
