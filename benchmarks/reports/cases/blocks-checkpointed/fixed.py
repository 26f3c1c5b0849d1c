"""A small vision transformer on synthetic textures; the trainer takes its settings from one config."""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    seed: int = 11
    threads: int = 1
    size: int = 32
    patch: int = 4
    width: int = 96
    heads: int = 4
    depth: int = 4
    classes: int = 12
    batch: int = 8
    steps: int = 200
    lr: float = 5e-4
    gradient_checkpointing: bool = False


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Conv2d(1, config.width, config.patch, config.patch)
        self.places = nn.Parameter(0.02 * torch.randn((config.size // config.patch) ** 2, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.classes))

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            if self.training and self.config.gradient_checkpointing:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x.mean(dim=1))


def textures(config):
    """Gratings whose orientation is the class."""
    ys, xs = torch.meshgrid(*[torch.arange(config.size, dtype=torch.float)] * 2, indexing="ij")

    def draw():
        labels = torch.randint(config.classes, (config.batch,))
        angle = (labels * math.pi / config.classes).view(-1, 1, 1)
        phase = 6 * torch.rand(config.batch, 1, 1)
        waves = torch.sin(0.9 * (xs * angle.cos() + ys * angle.sin()) + phase)
        return (waves + 0.5 * torch.randn_like(waves)).unsqueeze(1), labels

    return draw


def make_step(model, optimizer):
    def step(images, labels):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main(config):
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    model, draw = VisionTransformer(config).train(), textures(config)
    step = make_step(model, torch.optim.AdamW(model.parameters(), lr=config.lr))
    start = time.perf_counter()
    for number in range(1, config.steps + 1):
        loss = step(*draw())
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
    print(f"{config.steps} steps, {1e3 * (time.perf_counter() - start) / config.steps:.2f} ms/step")


main(Config())
