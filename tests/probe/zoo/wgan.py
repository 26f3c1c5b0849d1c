"""WGAN with gradient penalty: the generator steps after every fifth critic step; 30 batches of data."""

import torch
from finger import Finger
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
CRITIC_STEPS = 5
loader = DataLoader(TensorDataset(torch.randn(240, 8)), batch_size=8)
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
finger = Finger()
for number, (real,) in enumerate(loader, start=1):
    fake = generator(torch.randn(len(real), 4)).detach()
    mixed = (real + torch.rand(len(real), 1) * (fake - real)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    finger.loss(loss)
    if number % CRITIC_STEPS == 0:
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(len(real), 4))).mean()
        loss.backward()
        of_generator.step()
        finger.loss(loss)
finger.show(*generator.parameters(), *critic.parameters())
