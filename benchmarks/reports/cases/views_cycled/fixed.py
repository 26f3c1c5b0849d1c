"""A small radiance field from many views: each step takes the next view from the loader and fits a few of its rays."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(9)
torch.set_num_threads(1)
VIEWS, SIZE, RAYS, STEPS, FREQUENCIES = 1000, 128, 2048, 800, 6


def make_photos(generator):
    """Bytes of pictures of a coloured ball, from cameras on a circle."""
    angles = torch.rand(VIEWS, generator=generator) * 6.283
    line = torch.linspace(-1, 1, SIZE)
    radius = (line[:, None].square() + line.square()).sqrt()
    rings, inside = torch.stack([radius, 2 * radius, 3 * radius], 2), (radius < 0.8)[:, :, None]
    photos = [((0.5 + 0.5 * (angle + rings).cos()) * inside * 255).to(torch.uint8) for angle in angles]
    return photos, angles


class Views(Dataset):
    """Photographs are kept as bytes; an item is the picture in floats, with the rays of its camera."""

    def __init__(self, photos, angles):
        self.photos, self.angles = photos, angles
        line = torch.linspace(-0.5, 0.5, SIZE)
        y, x = torch.meshgrid(line, line, indexing="ij")
        self.directions = torch.stack([x, y, torch.ones_like(x)], 2)

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, i):
        cos, sin = self.angles[i].cos(), self.angles[i].sin()
        turn = torch.tensor([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])
        directions = nn.functional.normalize(self.directions @ turn.T, dim=2)
        origins = (turn @ torch.tensor([0.0, 0.0, -2.0])).expand_as(directions)
        return {"image": self.photos[i].float() / 255, "rays": torch.cat([origins, directions], 2)}


class Field(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(FREQUENCIES))
        self.net = nn.Sequential(
            nn.Linear(6 * 2 * FREQUENCIES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    def forward(self, rays):
        phases = (rays[:, :, None] * self.frequencies).flatten(1)
        return self.net(torch.cat([phases.sin(), phases.cos()], 1)).sigmoid()


def cycle(loader):
    while True:
        yield from loader


def main():
    photos, angles = make_photos(torch.Generator().manual_seed(0))
    loader = DataLoader(Views(photos, angles), batch_size=1, shuffle=True)
    views = cycle(loader)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=2e-3)
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        view = next(views)
        chosen = torch.randint(SIZE * SIZE, (RAYS,))
        colours = field(view["rays"].view(-1, 6)[chosen])
        loss = nn.functional.mse_loss(colours, view["image"].view(-1, 3)[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 160 == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)
    print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")


if __name__ == "__main__":
    main()
