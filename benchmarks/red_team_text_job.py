"""A character model: causal attention by hand under autocast, accumulated micro-batches, decay by group, a cosine
schedule that is set by hand, a validation loss."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LENGTH, BATCH, ACCUMULATED, WIDTH, HEADS, LAYERS, EVERY = 32, 8, 2, 32, 4, 2, 5
torch.set_num_threads(1)
torch.manual_seed(1337)


def text():
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("abcdefgh"), 4)) for _ in range(30)]
    return " ".join(generator.choice(words, 3000))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.drop, self.drop_out = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x):
        rows, length, _ = x.shape
        parts = self.query_key_value(x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = query @ key.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        weights = weights.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = self.drop(weights.softmax(-1))
        return self.drop_out(self.out((weights @ value).transpose(1, 2).reshape(rows, length, WIDTH)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        if targets is None:
            return scores, None
        return scores, functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def batch(data):
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH,))
    inputs = torch.stack([torch.tensor(data[start : start + LENGTH]) for start in starts])
    targets = torch.stack([torch.tensor(data[start + 1 : start + 1 + LENGTH]) for start in starts])
    return inputs, targets


@torch.no_grad()
def validate(model, data):
    model.eval()
    losses = [model(*batch(data))[1].item() for _ in range(4)]
    model.train()
    return sum(losses) / len(losses)


def rate_at(step):
    if step < 5:
        return 1e-2 * (step + 1) / 5
    return 1e-3 + 0.5 * (1 + math.cos(math.pi * min(1, (step - 5) / 200))) * 9e-3


def main():
    letters = text()
    known = sorted(set(letters))
    data = np.array([known.index(letter) for letter in letters])
    train, held_out = data[:12000], data[12000:]
    model = Model(len(known))
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95)
    )
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        if step % EVERY == 0:
            print("validation", validate(model, held_out), flush=True)
        for _ in range(ACCUMULATED):
            inputs, targets = batch(train)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _, loss = model(inputs, targets)
            (loss / ACCUMULATED).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
