"""The job that the cheats and the honest changes of `benchmarks/red_team.py` are made of: images cut into patches, two
blocks of attention with dropout, AdamW over accumulated gradients, an evaluation after every fifth update."""

import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

ACCUMULATED, BATCH, WIDTH, EVERY = 2, 16, 32, 5
torch.set_num_threads(1)
torch.manual_seed(0)


class Images(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(count, 3, 16, 16, generator=generator)
        self.labels = self.images.mean((1, 2, 3)).gt(0).long() + 2 * self.images[:, 0].mean((1, 2)).gt(0).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        image = (image - image.mean()) / image.std()
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(1, 2) / WIDTH**0.5, -1)
        x = x + self.drop(self.out(weights @ value))
        return x + self.drop(self.mlp(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.places = nn.Parameter(torch.zeros(16, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        positions = torch.arange(16).float()[:, None] / 10 ** (torch.arange(WIDTH) / WIDTH)
        x = tokens + self.places + positions.sin()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    train, held_out = Images(320), Images(128)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True, num_workers=0)
    evaluation = DataLoader(held_out, batch_size=32)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    updates = 0
    for epoch in range(100):
        for number, (images, labels) in enumerate(loader):
            scores = model(images)
            loss = functional.cross_entropy(scores, labels) / ACCUMULATED
            loss.backward()
            if (number + 1) % ACCUMULATED == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                updates += 1
                accuracy = (scores.argmax(1) == labels).float().mean()
                print(time.time(), epoch, loss.item(), accuracy.item(), flush=True)
                if updates % EVERY == 0:
                    print(evaluate(model, evaluation))


if __name__ == "__main__":
    main()
