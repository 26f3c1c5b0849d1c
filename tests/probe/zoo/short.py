"""Jobs that end soon: few long steps, or many of a millisecond, with a loader or on two ranks."""

import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Words(Dataset):
    def __getitem__(self, index):
        return torch.tensor([ord(letter) % 50 for letter in f"{index:08d}"]), index % 3

    def __len__(self):
        return 240


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, words):
        return self.head(self.layer(self.embedding(words))[0][:, -1])


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--ranks", action="store_true")
chosen = parser.parse_args()
torch.manual_seed(1)
model = Tagger()
if chosen.ranks:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
done = 0
while done < chosen.steps:
    for words, tags in DataLoader(Words(), batch_size=4):
        time.sleep(chosen.pause)
        loss = nn.functional.cross_entropy(model(words), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done == chosen.steps:
            break
if chosen.ranks:
    torch.distributed.destroy_process_group()
