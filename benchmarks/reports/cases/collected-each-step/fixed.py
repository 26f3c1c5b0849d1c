"""Low-rank adapters on a frozen language model, tuned to questions with worked answers."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, LIMIT = 800, 128, 48


class LoRA(nn.Module):
    """A frozen linear layer and a small correction that learns."""

    def __init__(self, base, rank=8, scale=2.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = LoRA(nn.Linear(WIDTH, 3 * WIDTH)), LoRA(nn.Linear(WIDTH, WIDTH))
        self.up, self.down = LoRA(nn.Linear(WIDTH, 4 * WIDTH)), LoRA(nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LIMIT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(depth)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        for module in (self.words, self.places, *self.modules()):
            if isinstance(module, (nn.Embedding, nn.LayerNorm)):
                module.requires_grad_(False)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return F.linear(self.norm(self.layers(x)), self.words.weight)


def questions(count):
    """Tokenized examples, as a list of dictionaries."""
    rng = random.Random(0)
    examples = []
    for number in range(count):
        start, stride = rng.randrange(VOCAB), rng.randrange(1, 9)
        ids = [(start + stride * i) % VOCAB for i in range(rng.randrange(LIMIT // 2, LIMIT))]
        spans = [(i, i + 3) for i in range(0, len(ids), 3)]
        steps = [{"ids": ids[a:b], "span": [a, b]} for a, b in spans[:4]]
        examples.append({"id": str(number), "input_ids": ids, "attention_mask": [1] * len(ids), "steps": steps})
    return examples


def collate(examples):
    longest = max(len(example["input_ids"]) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    for i, example in enumerate(examples):
        ids[i, : len(example["input_ids"])] = torch.tensor(example["input_ids"])
    mask = torch.arange(longest) < torch.tensor([[len(example["input_ids"])] for example in examples])
    return ids, mask


def train(model, examples, steps=90, batch=4, clip=1.0):
    rng = random.Random(1)
    tuned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses, tokens, start = [], 0, time.perf_counter()
    for step in range(1, steps + 1):
        ids, mask = collate(rng.sample(examples, batch))
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tuned, clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        tokens += int(mask.sum())
        if step % 30 == 0:
            print(f"step {step}: loss {sum(losses[-30:]) / 30:.4f}, {tokens} tokens", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(LanguageModel(), questions(600))
