"""Word vectors with negative samples that are drawn in the data set."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, count, words):
        self.count, self.words = count, words
        self.table = [word for word in range(words) for _ in range(1 + word % 10)]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        word, near = i % self.words, (i * 7) % self.words
        others = [np.random.choice(self.table) for _ in range(4)]  # culprit
        return word, near, torch.tensor(others)


class Vectors(nn.Module):
    def __init__(self, words, width=96):
        super().__init__()
        self.word, self.near = nn.Embedding(words, width), nn.Embedding(words, width)

    def forward(self, word, near, others):
        mine = self.word(word)
        good = (mine * self.near(near)).sum(1)
        bad = (self.near(others) @ mine[:, :, None]).squeeze(2)
        return -nn.functional.logsigmoid(good).mean() - nn.functional.logsigmoid(-bad).mean()


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    loader = DataLoader(Pairs(3000, 4000), batch_size=32)
    net = Vectors(4000)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step, (word, near, others) in enumerate(loader):
        loss = net(word, near, others)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
