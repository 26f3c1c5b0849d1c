"""One training script with the usual knobs as options: what each brings on a machine, `steptime judge` and `lab` tell.

steptime run -- python examples/knobs.py
steptime judge --args "--fused" --args "--attention flash" -- python examples/knobs.py
steptime lab --batch-sizes auto -- python examples/knobs.py
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CLASSES, SIDE, PATCH = 10, 32, 4


class Block(nn.Module):
    """Attention and a perceptron, each next to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.joint(self.before(x)).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.between(x))


class Network(nn.Module):
    """Convolutions cut an image into patches, blocks mix them."""

    def __init__(self, width: int, depth: int, *, checkpointing: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)
        self.checkpointing = checkpointing

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x.mean(dim=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of autocast")
    parser.add_argument("--compile", choices=["none", "default", "reduce-overhead", "max-autotune"], default="none")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--fused", action="store_true", help="the optimizer in one kernel")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--checkpointing", action="store_true", help="keep no activations of the blocks")
    parser.add_argument("--attention", choices=["auto", *BACKENDS], default="auto")
    return parser.parse_args()


def batches(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    images = torch.rand(512, 3, SIDE, SIDE)
    labels = (images.mean(dim=(1, 2, 3)) * 1000).long() % CLASSES
    loader = DataLoader(
        TensorDataset(images, labels),
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=options.pin_memory,
    )
    while True:
        yield from loader


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    network = Network(64, 3, checkpointing=options.checkpointing).to(device, memory_format=layout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, fused=options.fused or None)
    model = network if options.compile == "none" else torch.compile(network, mode=options.compile)
    cast = torch.autocast(device, torch.bfloat16, enabled=options.dtype == "bfloat16")
    attention = contextlib.nullcontext() if options.attention == "auto" else sdpa_kernel(BACKENDS[options.attention])
    stream = batches(options)
    with attention:
        for _ in range(options.steps):
            for _ in range(options.accumulate):
                images, labels = next(stream)
                images = images.to(device, memory_format=layout, non_blocking=options.pin_memory)
                with cast:
                    loss = nn.functional.cross_entropy(model(images), labels.to(device)) / options.accumulate
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {options.accumulate * loss.item():.6f}")


if __name__ == "__main__":
    main()
