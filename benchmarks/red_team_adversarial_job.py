"""Two networks against each other: critic steps with a gradient penalty, spectral norms, an average of the generator,
two optimizers of which each has a schedule, and images of fixed noise that are written."""

import copy

import torch
from torch import nn, optim
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

NOISE, BATCH, CRITIC, PENALTY, DRIFT = 16, 16, 3, 10.0, 1e-3
torch.set_num_threads(1)
torch.manual_seed(7)


def generator_network():
    return nn.Sequential(
        nn.Linear(NOISE, 4 * 4 * 16),
        nn.Unflatten(1, (16, 4, 4)),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, 2, 1),
        nn.Tanh(),
    )


def critic_network():
    return nn.Sequential(
        spectral_norm(nn.Conv2d(1, 8, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Dropout2d(0.1),
        spectral_norm(nn.Conv2d(8, 16, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 1),
    )


def penalty(critic, real, fake):
    share = torch.rand(len(real), 1, 1, 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()


def main():
    shapes = torch.randn(256, 1, 16, 16).cumsum(2).cumsum(3)
    images = shapes / shapes.abs().amax((1, 2, 3), keepdim=True)
    loader = DataLoader(TensorDataset(images), batch_size=BATCH, shuffle=True, drop_last=True)
    generator, critic = generator_network(), critic_network()
    average = copy.deepcopy(generator)
    slow = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    fast = optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    schedules = [optim.lr_scheduler.ExponentialLR(each, 0.99) for each in (slow, fast)]
    fixed = torch.randn(32, NOISE)
    step = 0
    for _ in range(200):
        for (real,) in loader:
            real = torch.where(torch.rand(len(real), 1, 1, 1) < 0.5, real.flip(3), real)
            with torch.no_grad():
                fake = generator(torch.randn(len(real), NOISE))
            scores = critic(real), critic(fake)
            loss = scores[1].mean() - scores[0].mean() + PENALTY * penalty(critic, real, fake)
            loss = loss + DRIFT * scores[0].square().mean()
            fast.zero_grad()
            loss.backward()
            fast.step()
            step += 1
            if step % CRITIC == 0:
                cost = -critic(generator(torch.randn(BATCH, NOISE))).mean()
                slow.zero_grad()
                cost.backward()
                slow.step()
                with torch.no_grad():
                    for mine, theirs in zip(average.parameters(), generator.parameters(), strict=True):
                        mine.lerp_(theirs, 0.1)
                    for mine, theirs in zip(average.buffers(), generator.buffers(), strict=True):
                        mine.copy_(theirs)
                print(step, loss.item(), cost.item(), flush=True)
            if step % 9 == 0:
                average.eval()
                with torch.no_grad():
                    print("images", average(fixed).std().item())
        for schedule in schedules:
            schedule.step()


if __name__ == "__main__":
    main()
