"""Paired translation of pictures: sketches become shaded shapes, results are shown on a page while it trains."""

import base64
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
torch.set_num_threads(1)


@dataclass
class Options:
    size: int = 64
    width: int = 16
    batch: int = 4
    steps: int = 220
    shown: int = 3
    every: int = 1
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))


def bitmap(picture):
    """A picture as the bytes of a .ppm file."""
    height, width = picture.shape[-2:]
    levels = (picture.clamp(0, 1) * 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    return f"P6 {width} {height} 255\n".encode() + levels.numpy().tobytes()


class Page:
    HEAD, MARK = "<html><body><table>\n", "<!-- newest -->\n"

    def __init__(self, path):
        self.path = path
        self.path.write_text(self.HEAD + self.MARK + "</table></body></html>\n")

    def add(self, title, pictures):
        cells = "".join(
            f'<td><img alt="{name}" src="data:image/x-portable-pixmap;base64,{base64.b64encode(data).decode()}"></td>'
            for name, data in pictures.items()
        )
        page = self.path.read_text()  # culprit-too
        before, after = page.split(self.MARK, 1)
        page = f"{before}{self.MARK}<tr><th>{title}</th>{cells}</tr>\n{after}"
        self.path.write_text(page)  # culprit


class Visualizer:
    def __init__(self, options):
        self.options, self.page = options, Page(options.folder / "index.html")

    def display(self, step, visuals):
        pictures = {}
        for name, batch in visuals.items():
            for i, picture in enumerate(batch[: self.options.shown]):
                pictures[f"{name}{i}"] = bitmap(picture)
        self.page.add(f"step {step}", pictures)  # culprit-too


class Translator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1))
        self.up = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x):
        return torch.sigmoid(self.up(self.down(x)))


class Trainer:
    def __init__(self, options):
        self.options, self.net, self.visualizer = options, Translator(options.width), Visualizer(options)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, options.size)] * 2, indexing="ij"))

    def pairs(self):
        while True:
            centre = torch.rand(self.options.batch, 2, 1, 1) - 0.5
            distance = (self.grid - centre).norm(dim=1, keepdim=True)
            yield (distance - 0.4).abs().lt(0.04).float().expand(-1, 3, -1, -1), (0.4 - distance).clamp(0).expand(
                -1, 3, -1, -1
            ) * torch.tensor([2.0, 1.5, 1.0]).view(3, 1, 1)

    def train(self):
        start = time.perf_counter()
        for step, (sketch, shaded) in enumerate(self.pairs(), 1):
            fake = self.net(sketch)
            loss = F.l1_loss(fake, shaded)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.options.every == 0:
                self.visualizer.display(step, {"sketch": sketch, "fake": fake.detach(), "real": shaded})
            if step % 55 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == self.options.steps:
                break
        print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")


Trainer(Options()).train()
