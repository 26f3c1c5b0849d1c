"""A masked language model: sentences are cut into word pieces by a collator with dynamic masking."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
LETTERS, WIDTH, LIMIT, BATCH, MASK = "abcdefghij", 64, 40, 24, 1
pieces = list(LETTERS) + [a + b for a in LETTERS for b in LETTERS] + [a + "e" + b for a in LETTERS for b in LETTERS]


class Tokenizer:
    def __init__(self):
        self.vocabulary = {piece: 2 + i for i, piece in enumerate(pieces)}
        self.longest = max(map(len, pieces))

    def word(self, word):
        ids, at = [], 0
        while at < len(word):
            end = min(len(word), at + self.longest)
            while word[at:end] not in self.vocabulary:
                end -= 1
            ids.append(self.vocabulary[word[at:end]])
            at = end
        return ids

    def __call__(self, text):
        text = "".join(c if c.isalpha() else " " for c in text.lower())
        return [i for word in text.split() for i in self.word(word)][:LIMIT]


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, texts):
        rows = [self.tokenizer(text) for text in texts]  # culprit
        ids = torch.zeros(len(rows), LIMIT, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        hidden = (torch.rand(ids.shape) < 0.15) & (ids > 0)
        return ids.masked_fill(hidden, MASK), torch.where(hidden, ids, -100)


class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(2 + len(pieces), WIDTH), nn.Embedding(LIMIT, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, 2 + len(pieces))

    def forward(self, ids):
        return self.out(self.block(self.words(ids) + self.places.weight, src_key_padding_mask=ids == 0))


lexicon = ["".join(random.choices(LETTERS, k=random.randint(3, 12))) for _ in range(3000)]
corpus = [" ".join(random.choices(lexicon, k=random.randint(30, 400))).capitalize() + "." for _ in range(800)]
loader = DataLoader(corpus, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=Collator(Tokenizer()))
model, step = MaskedLM(), 0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start, EPOCHS = time.perf_counter(), 9
for epoch in range(EPOCHS):
    for ids, labels in loader:
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"epoch {epoch}: step {step}: loss {loss.item():.4f}", flush=True)
print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")
