"""Translation of number words: a recurrent decoder looks at the source by additive attention."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, LONG, SHORT, WIDTH, BATCH, STEPS = 60, 40, 14, 128, 12, 160


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(2 * WIDTH, WIDTH)
        self.energy = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, state, source):
        keys = self.key(source)  # culprit
        energy = self.energy(torch.tanh(keys + self.query(state)[:, None])).squeeze(2)
        return (energy.softmax(1)[:, None] @ source).squeeze(1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attend = Attention()
        self.cell = nn.GRUCell(3 * WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, WORDS)

    def forward(self, source, target):
        state, states = source.new_zeros(len(source), WIDTH), []
        for word in self.embed(F.pad(target[:, :-1], (1, 0))).unbind(1):
            seen = self.attend(state, source)  # culprit
            state = self.cell(torch.cat([word, seen], 1), state)
            states.append(state)
        return self.score(torch.stack(states, 1))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.decoder = Decoder()

    def forward(self, source, target):
        return self.decoder(self.encoder(self.embed(source))[0], target)  # culprit-too


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    source = torch.randint(1, WORDS, (BATCH, LONG))
    target = source[:, : 2 * SHORT : 2]
    logits = model(source, target)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
