"""Four training programs of public kinds, on made data: each an ordinary plain loop, and a job by itself.

    python benchmarks/device/programs.py gpt --seconds 12

gpt: a character-level GPT of 10.7 M parameters. gptbig: one of 200 M. resnet: ResNet-50 on images of 224. dense: linear
layers. tiny: a GPT that a CPU trains, for rehearsals. All in float32, with AdamW.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.words(tokens) + places))).flatten(0, 1)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        self.path = nn.Sequential(
            convolution(inputs, middle, 1),
            nn.ReLU(),
            convolution(middle, middle, 3, stride),
            nn.ReLU(),
            convolution(middle, outputs, 1),
        )
        shortcut = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if shortcut else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.path(x) + self.shortcut(x))


def resnet() -> nn.Module:
    parts: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for middle, count, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            parts.append(Bottleneck(inputs, middle, 1 if number else first_stride))
            inputs = 4 * middle
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def dense() -> nn.Module:
    layers = [each for _ in range(8) for each in (nn.Linear(2048, 2048), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(2048, 10))


SIZES = {
    "tiny": (32, 2, 2, 65, 32, 4),
    "gpt": (384, 6, 6, 65, 256, 64),
    "gptbig": (1024, 16, 12, 50304, 1024, 8),
}
"""Width, heads, layers, words, length of a sequence, sequences in a batch."""
PROGRAMS = ("gpt", "dense", "resnet", "gptbig")


def program(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, a batch and its targets, on the device."""
    torch.manual_seed(0)
    if name == "resnet":
        return resnet().to(DEVICE), torch.randn(128, 3, 224, 224, device=DEVICE), targets(1000, 128)
    if name == "dense":
        return dense().to(DEVICE), torch.randn(4096, 2048, device=DEVICE), targets(10, 4096)
    *size, batch = SIZES[name]
    words, length = size[3:]
    tokens = torch.randint(words, (batch, length), device=DEVICE)
    return GPT(*size).to(DEVICE), tokens, targets(words, batch * length)


def targets(classes: int, count: int) -> Tensor:
    return torch.randint(classes, (count,), device=DEVICE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=(*PROGRAMS, "tiny"))
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    model, inputs, wanted = program(options.name)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        loss = functional.cross_entropy(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
