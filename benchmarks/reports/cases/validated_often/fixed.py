"""A language model of genes: codons in, the next codon out, a small causal transformer."""

import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)
torch.set_num_threads(1)
CODONS, LENGTH = 64, 48


@dataclass
class Config:
    batch_size: int = 16
    epochs: int = 3
    genes: int = 1280
    held_out: int = 640
    width: int = 64
    layers: int = 2
    val_check_interval: int = 80
    log_every: int = 40


def make_genes(count, generator):
    """Codons with a bias: each prefers a few followers."""
    follow = torch.randint(CODONS, (CODONS, 4), generator=generator)
    genes = torch.randint(CODONS, (count, 1), generator=generator)
    for _ in range(LENGTH):
        choice = torch.randint(4, (count,), generator=generator)
        genes = torch.cat([genes, follow[genes[:, -1], choice][:, None]], 1)
    return genes


class GeneModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.codons, self.places = nn.Embedding(CODONS, config.width), nn.Embedding(LENGTH, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width, 4, 2 * config.width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.head = nn.Linear(config.width, CODONS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, genes):
        x = self.codons(genes) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))

    def loss(self, genes):
        return F.cross_entropy(self(genes[:, :-1]).flatten(0, 1), genes[:, 1:].flatten())


class Trainer:
    def __init__(self, config):
        self.config, generator = config, torch.Generator().manual_seed(0)
        genes = make_genes(config.genes + config.held_out, generator)
        self.train_genes, self.held_out = genes[: config.genes], genes[config.genes :]
        self.model = GeneModel(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.steps, self.best = 0, float("inf")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.model.loss(batch) for batch in self.held_out.split(self.config.batch_size)]
        self.model.train()
        return torch.stack(losses).mean().item()

    def fit(self):
        for _ in range(self.config.epochs):
            for rows in torch.randperm(self.config.genes).split(self.config.batch_size):
                loss = self.model.loss(self.train_genes[rows])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.steps += 1
                if self.steps % self.config.val_check_interval == 0:
                    self.best = min(self.best, self.validate())
                if self.steps % self.config.log_every == 0:
                    print(f"step {self.steps}: loss {loss.item():.4f} best held out {self.best:.4f}", flush=True)


trainer = Trainer(Config())
start = time.perf_counter()
trainer.fit()
print(f"{trainer.steps} steps, {1e3 * (time.perf_counter() - start) / trainer.steps:.2f} ms/step")
