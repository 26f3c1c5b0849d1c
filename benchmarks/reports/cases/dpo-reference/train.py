"""Preference tuning (DPO) of a small language model; only its last block and head are tuned."""

import copy
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH, LENGTH, BETA = 512, 128, 48, 0.1


class LM(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = lambda: nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(layer() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, src_mask=self.mask[: ids.shape[1], : ids.shape[1]], is_causal=True)
        return self.head(self.norm(x))


class Pairs(Dataset):
    def __init__(self, count):
        self.chosen, self.rejected = torch.randint(1, VOCAB, (count, LENGTH)), torch.randint(1, VOCAB, (count, LENGTH))
        self.rejected[:, :16] = self.chosen[:, :16]

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, i):
        item = {"chosen": self.chosen[i], "rejected": self.rejected[i]}
        return item


def log_probs(model, batch):
    """Sum of the log-probabilities of each answer: chosen, rejected."""
    ids = torch.cat([batch["chosen"], batch["rejected"]])
    logp = model(ids)[:, 15:-1].log_softmax(-1)
    return logp.gather(2, ids[:, 16:, None]).squeeze(2).sum(1).chunk(2)


class Trainer:
    def __init__(self, model, data):
        self.model, self.ref_model = model, copy.deepcopy(model).eval().requires_grad_(False)
        for part in (model.tokens, model.places, *model.blocks[:-1]):
            part.requires_grad_(False)
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        tuned = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(tuned, lr=1e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 240)

    def loss(self, batch):
        chosen, rejected = log_probs(self.model, batch)
        with torch.no_grad():  # culprit-too
            ref_chosen, ref_rejected = log_probs(self.ref_model, batch)  # culprit
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        return -nn.functional.logsigmoid(BETA * margin).mean(), (margin > 0).float().mean()

    def train(self, epochs):
        start, done = time.perf_counter(), 0
        for epoch in range(epochs):
            for batch in self.loader:
                loss, wins = self.loss(batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
                done += 1
            print(f"epoch {epoch}: loss {loss.item():.4f}, chosen preferred in {wins.item():.2f}", flush=True)
        print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")


Trainer(LM(), Pairs(80)).train(12)
