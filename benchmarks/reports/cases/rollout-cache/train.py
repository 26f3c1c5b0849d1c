"""Group-relative policy optimization: a small language model answers prompts and is rewarded."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH, HEADS, BLOCKS, PROMPT, ANSWER, GROUP = 128, 64, 4, 2, 16, 28, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past[:] = [k, v]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=t > 1).transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(PROMPT + ANSWER, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(BLOCKS)), nn.LayerNorm(WIDTH)

    def new_cache(self):
        return None if self.training else [[] for _ in range(BLOCKS)]  # culprit-too

    def forward(self, ids, cache=None):
        seen = cache[0][0].shape[2] if cache and cache[0] else 0
        ids = ids[:, seen:]
        x = self.tokens(ids) + self.places.weight[seen : seen + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, cache[i] if cache else None)
        return self.norm(x) @ self.tokens.weight.T

    @torch.no_grad()
    def generate(self, ids):
        cache = self.new_cache()
        for _ in range(ANSWER):
            logits = self(ids, cache)[:, -1]  # culprit
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
        return ids


def reward(ids):
    """How many tokens of the answer are even, less repeated ones."""
    answer = ids[:, PROMPT:]
    return (answer % 2 == 0).float().mean(1) - 0.5 * (answer[:, 1:] == answer[:, :-1]).float().mean(1)


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
prompts = torch.randint(0, VOCAB, (64, PROMPT))
start, STEPS = time.perf_counter(), 75
for step in range(1, STEPS + 1):
    prompt = prompts[torch.randint(64, (1,))].repeat(GROUP, 1)
    ids = model.generate(prompt)
    score = reward(ids)
    advantage = (score - score.mean()) / (score.std() + 1e-4)
    with torch.no_grad():
        before = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[:, PROMPT - 1 :, 0]
    for _ in range(2):
        now = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[:, PROMPT - 1 :, 0]
        ratio = (now - before).exp()
        loss = -torch.minimum(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if step % 15 == 0:
        print(f"step {step}: reward {score.mean().item():.3f} loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
