"""A second job for the cheats and honest changes of `benchmarks/red_team.py`: what is evaluated is a moving average of
the weights, images are augmented afresh in each epoch, the loss has a second term, and parameters decay by group."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, EVERY, KEEP, SQUARED = 16, 24, 4, 0.9, 1e-3
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)


class Images(Dataset):
    def __init__(self, count, augmented):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(count, 3, 12, 12, generator=generator)
        self.labels = self.images.mean((1, 2, 3)).gt(0).long() + 2 * self.images[:, 0].mean((1, 2)).gt(0).long()
        self.augmented = augmented

    def __len__(self):
        return len(self.images)

    def augment(self, image):
        if random.random() < 0.5:
            image = image.flip(2)
        return image + 0.1 * torch.randn(image.shape)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augmented:
            image = self.augment(image)
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.GroupNorm(4, WIDTH)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.drop = nn.Dropout(0.1)

    def branch(self, x):
        return self.drop(self.second(functional.gelu(self.norm(self.first(x)))))

    def forward(self, x):
        kept = torch.rand(len(x), 1, 1, 1) > 0.1 if self.training else 1.0
        return x + kept * self.branch(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def average(kept, model):
    with torch.no_grad():
        for mine, theirs in zip(kept.parameters(), model.parameters(), strict=True):
            mine.mul_(KEEP).add_(theirs, alpha=1 - KEEP)


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main():
    loader = DataLoader(Images(96, True), batch_size=BATCH, shuffle=True)
    evaluation = DataLoader(Images(64, False), batch_size=32)
    model = Model()
    kept = copy.deepcopy(model)
    decayed = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.98), foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    updates = 0
    for _ in range(100):
        for images, labels in loader:
            scores = model(images)
            loss = functional.cross_entropy(scores, labels, label_smoothing=0.1)
            loss = loss + SQUARED * scores.logsumexp(1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            average(kept, model)
            updates += 1
            print(loss.item(), flush=True)
            if updates % EVERY == 0:
                print(evaluate(kept, evaluation))


if __name__ == "__main__":
    main()
