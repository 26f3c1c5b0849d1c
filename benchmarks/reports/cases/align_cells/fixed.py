"""Text to sound features: tokens are laid along the frames on the best path that never goes back."""

import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)
TOKENS, LETTERS, FRAMES, BANDS, WIDTH, BATCH, STEPS = 24, 40, 80, 20, 96, 8, 260


def best_paths(scores):
    """For each frame the token it belongs to, on the monotonic path of the highest sum. scores: batch x tokens x
    frames."""
    count, tokens, frames = scores.shape
    value, moved = np.full((count, tokens + 1), -1e9, np.float32), np.empty((frames, count, tokens), bool)
    value[:, 0] = 0
    for t in range(frames):
        moved[t] = value[:, :-1] >= value[:, 1:]
        value[:, 1:] = np.maximum(value[:, :-1], value[:, 1:]) + scores[:, :, t]
        value[:, 0] = -1e9
    path, rows, i = np.empty((count, frames), np.int64), np.arange(count), np.full(count, tokens - 1)
    for t in range(frames - 1, -1, -1):
        path[:, t] = i
        i = np.maximum(i - (moved[t, rows, i] | (i == t)), 0)
    return path


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        layers = (nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.ReLU()) for _ in range(3))
        self.encode, self.mean = nn.Sequential(*layers), nn.Conv1d(WIDTH, BANDS, 1)
        self.length = nn.Conv1d(WIDTH, 1, 1)
        self.decode = nn.Sequential(
            nn.Conv1d(BANDS, WIDTH, 5, padding=2), nn.ReLU(), nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.ReLU(),
            nn.Conv1d(WIDTH, BANDS, 5, padding=2),
        )  # fmt: skip

    def forward(self, text, sound):
        hidden = self.encode(self.letters(text).transpose(1, 2))
        mean = self.mean(hidden)
        with torch.no_grad():
            scores = -(mean[:, :, :, None] - sound[:, :, None, :]).square().sum(1)
            path = torch.from_numpy(best_paths(scores.numpy()))
        spread = mean.gather(2, path[:, None].expand(-1, BANDS, -1))
        lengths = nn.functional.one_hot(path, TOKENS).sum(1).float()
        wanted = nn.functional.mse_loss(self.length(hidden.detach())[:, 0], lengths.log())
        rebuilt = spread + self.decode(spread)
        return nn.functional.mse_loss(spread, sound) + nn.functional.mse_loss(rebuilt, sound) + 0.1 * wanted


def sentences(count, generator):
    voice = torch.randn(LETTERS, BANDS, generator=generator)
    text = torch.randint(LETTERS, (count, TOKENS), generator=generator)
    ends = torch.rand(count, TOKENS, generator=generator).add(0.3).cumsum(1)
    at = (ends / ends[:, -1:] * FRAMES)[:, :, None] <= torch.arange(FRAMES) + 0.5
    sound = voice[text.gather(1, at.sum(1).clamp_max(TOKENS - 1))]
    return text, (sound + 0.2 * torch.randn(sound.shape, generator=generator)).transpose(1, 2)


generator = torch.Generator().manual_seed(0)
text, sound = sentences(400, generator)
model = Voice()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    rows = torch.randint(len(text), (BATCH,), generator=generator)
    loss = model(text[rows], sound[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 65 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
