"""A Lightning module whose items are slow to make; healthy: in memory."""

import logging
import warnings

import lightning
import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)


class Beats(Dataset):
    """Heart beats, smoothed when they are read."""

    def __init__(self):
        self.beats = np.random.default_rng(0).normal(size=(2048, 512)).astype(np.float32)

    def __len__(self):
        return len(self.beats)

    def __getitem__(self, index):
        beat = self.beats[index]
        for _ in range(amount):
            beat = np.convolve(beat, np.ones(33, np.float32) / 33, mode="same")  # fault
        return torch.from_numpy(beat), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.Linear(4096, 10))

    def training_step(self, batch, _):
        beats, labels = batch
        return nn.functional.cross_entropy(self.layers(beats), labels)

    def on_train_batch_end(self, *_):
        lap()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(Beats(), batch_size=32))  # fault
