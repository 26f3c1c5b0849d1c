"""A training job whose input pipeline is slower than its model: images are decoded and augmented one by one, in the
training process.

    steptime run -- python examples/slow_input.py

Needs torch and nothing else. The images are made up and kept in memory as PNG files, so the time goes where it goes in
real jobs: into decoding. The labels can be learnt, so the loss falls.
"""

from __future__ import annotations

import argparse
import random
import struct
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CROP = 96, 48
CLASSES = 4


def encode_png(pixels: torch.Tensor) -> bytes:
    """A colour image (height, width, 3) of uint8 as a PNG file; a row is stored as its difference to the one above."""
    height, width, _ = pixels.shape
    above = torch.cat([torch.zeros_like(pixels[:1]), pixels[:-1]])
    rows = (pixels.int() - above.int()).remainder(256).to(torch.uint8).reshape(height, -1)
    filtered = b"".join(b"\x02" + bytes(row.tolist()) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def decode_png(file: bytes) -> torch.Tensor:
    """The pixels (3, height, width) of a file that `encode_png` made, from 0 to 1."""
    position, data = 8, b""
    width = height = 0
    while position < len(file):
        size, kind = struct.unpack_from(">I4s", file, position)
        body = file[position + 8 : position + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", body)
        elif kind == b"IDAT":
            data += body
        position += size + 12
    filtered = zlib.decompress(data)
    stride = 3 * width
    row, rows = bytes(stride), []
    for line in range(height):
        start = line * (stride + 1) + 1
        row = bytes([(byte + above) & 255 for byte, above in zip(filtered[start : start + stride], row, strict=True)])
        rows.append(row)
    pixels = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    return pixels.reshape(height, width, 3).permute(2, 0, 1).float() / 255


class Images(Dataset):
    """Made-up photographs: stripes whose direction and frequency are the label, under noise."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (count,), generator=generator).tolist()
        self.files = [encode_png(self.draw(label, generator)) for label in self.labels]

    @staticmethod
    def draw(label: int, generator: torch.Generator) -> torch.Tensor:
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        wave = torch.sin((x if label % 2 else y) * (0.2 + 0.4 * (label // 2)))
        noise = torch.randn(SIDE, SIDE, 3, generator=generator)
        return (128 + 60 * wave[:, :, None] + 40 * noise).clamp(0, 255).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = decode_png(self.files[index])
        top, left = random.randrange(SIDE - CROP), random.randrange(SIDE - CROP)
        image = image[:, top : top + CROP, left : left + CROP]
        if random.random() < 0.5:
            image = image.flip(2)
        image = image * random.uniform(0.8, 1.2) + random.uniform(-0.1, 0.1)
        return (image - 0.5) / 0.25, self.labels[index]


def make_model() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    return nn.Sequential(block(3, 8), block(8, 16), block(16, 32), head)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(Images(arguments.images), batch_size=32, shuffle=True, num_workers=arguments.workers)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(arguments.epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
