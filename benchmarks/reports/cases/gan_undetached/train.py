"""A small GAN of vectors."""
import torch
from torch import nn


def tower(sizes):
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def main():
    torch.manual_seed(0)
    generator = tower([32, 512, 768, 768, 64])
    critic = tower([64, 128, 64, 1])
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4)
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(96, 1), torch.zeros(96, 1)
    for step in range(120):
        real = torch.randn(96, 64).cumsum(1) / 8
        fake = generator(torch.randn(96, 32))
        loss_c = bce(critic(real), ones) + bce(critic(fake), zeros)  # culprit
        opt_c.zero_grad()
        loss_c.backward(retain_graph=True)  # culprit-too
        opt_c.step()
        loss_g = bce(critic(fake), ones)
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        if step % 40 == 0:
            print(f"{step}: {loss_c.item():.3f} {loss_g.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
