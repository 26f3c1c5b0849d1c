"""A radiance field: colours of rays are learned from a ring of synthetic views."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
RAYS, SAMPLES, STEPS = 96, 16, 130


def encode(x, levels=6):
    parts = [x]
    for level in range(levels):
        parts += [torch.sin(2.0**level * x), torch.cos(2.0**level * x)]
    return torch.cat(parts, -1)


class Field(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        size = 3 * 13
        self.layers = nn.ModuleList(
            nn.Linear(size if i == 0 else width + (size if i == 3 else 0), width) for i in range(depth)
        )
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 3 * 9, 32), nn.ReLU(), nn.Linear(32, 3)),
        )

    def forward(self, points, directions):
        code, h = encode(points), encode(points)
        for i, layer in enumerate(self.layers):
            if i == 3:
                h = torch.cat([code, h], -1)
            h = layer(h).relu()
        return self.density(h).squeeze(-1).relu(), self.colour(torch.cat([h, encode(directions, 4)], -1)).sigmoid()


def render(field, origins, directions, near=1.0, far=4.0):
    depths = torch.linspace(near, far, SAMPLES) + (far - near) / SAMPLES * torch.rand(len(origins), SAMPLES)
    points = origins[:, None] + directions[:, None] * depths[..., None]
    density, colour = field(points, directions[:, None].expand_as(points))
    gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full((len(origins), 1), 1e2)], 1)
    alpha = 1 - torch.exp(-density * gaps)
    clear = torch.cumprod(torch.cat([torch.ones(len(origins), 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weights = alpha * clear
    return (weights[..., None] * colour).sum(1), (weights * depths).sum(1)


def rays():
    angle = 6.283 * torch.rand(RAYS)
    origins = torch.stack([2.5 * angle.cos(), 2.5 * angle.sin(), 0.3 * torch.randn(RAYS)], 1)
    directions = nn.functional.normalize(-origins + 0.4 * torch.randn(RAYS, 3), dim=1)
    nearest = origins - directions * (origins * directions).sum(1, keepdim=True)
    return origins, directions, torch.exp(-4 * nearest.norm(dim=1, keepdim=True)) * (0.5 + 0.5 * nearest.sign())


coarse, fine = Field(depth=4), Field()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    origins, directions, wanted = rays()
    first, _ = render(coarse, origins, directions)
    second, depth = render(fine, origins, directions)
    loss = (first - wanted).pow(2).mean() + (second - wanted).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 5e-4 * 0.1 ** (step / 1000)
    if step % 30 == 0:
        psnr = -10 * torch.log10((second - wanted).pow(2).mean()).item()
        print(f"step {step}: loss {loss.item():.4f} psnr {psnr:.2f} depth {depth.mean().item():.2f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
