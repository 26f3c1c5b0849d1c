"""Two optimizers and three backwards a step; 24 batches."""

import torch
from finger import Finger
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(192, 8)), batch_size=8)
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LeakyReLU(0.2), torch.nn.Linear(16, 1))
criterion = torch.nn.BCEWithLogitsLoss()
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
finger = Finger()
for (real,) in loader:
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    critic.zero_grad()
    loss_real = criterion(critic(real), ones)
    loss_real.backward()
    fake = generator(torch.randn(len(real), 4))
    loss_fake = criterion(critic(fake.detach()), zeros)
    loss_fake.backward()
    of_critic.step()
    generator.zero_grad()
    loss = criterion(critic(fake), ones)
    loss.backward()
    of_generator.step()
    finger.loss(loss_real + loss_fake)
    finger.loss(loss)
finger.show(*generator.parameters(), *critic.parameters())
