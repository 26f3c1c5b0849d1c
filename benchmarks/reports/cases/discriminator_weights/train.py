"""Shoes from handbags and back: two generators, two discriminators, without pairs."""

import time
from itertools import chain

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(8)
torch.set_num_threads(1)
SIDE, BATCH, UPDATE_EVERY, STEPS = 32, 16, 3, 120


def halved(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.2)]


class Generator(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(
            *halved(3, width),
            *halved(width, 2 * width),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, pictures):
        return self.layers(pictures)


class Discriminator(nn.Module):
    """A score for each picture, and the features that led to it."""

    def __init__(self, width=52):
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.layers = nn.ModuleList(nn.Sequential(*halved(a, b)) for a, b in zip(sizes, sizes[1:]))
        self.score = nn.Linear(4 * width * (SIDE // 8) ** 2, 1)

    def forward(self, pictures):
        features = []
        for layer in self.layers:
            pictures = layer(pictures)
            features.append(pictures)
        return self.score(pictures.flatten(1)), features


def pictures(shoe):
    """Rings or bars in one random colour."""
    colour = torch.rand(BATCH, 3, 1, 1)
    grid = torch.linspace(-1, 1, SIDE)
    place = torch.rand(BATCH, 1, 1, 1) * 0.6 - 0.3
    x, y = grid[None, None, None, :] - place, grid[None, None, :, None]
    shape = (x.square() + y.square() - 0.3).abs() < 0.12 if shoe else (x - y).abs() < 0.2
    return shape * colour


def features_apart(real, fake):
    return sum(F.mse_loss(one.mean(0), other.mean(0)) for one, other in zip(real, fake))


make_shoe, make_bag = Generator(), Generator()
judge_shoe, judge_bag = Discriminator(), Discriminator()
judges = [*judge_shoe.parameters(), *judge_bag.parameters()]
for_generators = torch.optim.Adam(chain(make_shoe.parameters(), make_bag.parameters()), 2e-4, (0.5, 0.999))
for_judges = torch.optim.Adam(judges, 2e-4, (0.5, 0.999))
start = time.perf_counter()
for step in range(STEPS):
    shoes, bags = pictures(True), pictures(False)
    for_judges.zero_grad()
    for_generators.zero_grad()
    judging = step % UPDATE_EVERY == 0
    fake_bags, fake_shoes = make_bag(shoes), make_shoe(bags)
    if judging:
        fake_bags, fake_shoes = fake_bags.detach(), fake_shoes.detach()
    losses = []
    for judge, real, fake in ((judge_shoe, shoes, fake_shoes), (judge_bag, bags, fake_bags)):
        real_score, real_features = judge(real)  # culprit
        fake_score, fake_features = judge(fake)  # culprit
        if judging:
            losses.append(F.softplus(-real_score).mean() + F.softplus(fake_score).mean())
        else:
            losses.append(F.softplus(-fake_score).mean() + features_apart(real_features, fake_features))  # culprit-too
    if not judging:
        losses += [F.mse_loss(make_shoe(fake_bags), shoes), F.mse_loss(make_bag(fake_shoes), bags)]
    loss = sum(losses)
    loss.backward()  # culprit
    (for_judges if judging else for_generators).step()
    if step % 30 == 29:
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
