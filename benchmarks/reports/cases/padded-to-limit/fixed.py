"""Transcription of music: a spectrogram goes in, note events of very different number come out."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
EVENTS, WIDTH, FRAMES, BANDS, LIMIT, BATCH, PAD = 300, 64, 32, 40, 160, 8, 0


class Transcriber(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands, self.events = nn.Linear(BANDS, WIDTH), nn.Embedding(EVENTS, WIDTH, padding_idx=PAD)
        self.places = nn.Embedding(LIMIT, WIDTH)
        common = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, **common)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 4, **common), 2)
        self.out = nn.Linear(WIDTH, EVENTS)

    def forward(self, spectrogram, events):
        length = events.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.events(events) + self.places.weight[:length]
        memory = self.encoder(self.bands(spectrogram))
        return self.out(self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=True))


class Segments(torch.utils.data.Dataset):
    def __init__(self, n=400):
        self.lengths = (torch.empty(n).exponential_(1 / 14.0).long() + 4).clamp(max=LIMIT)
        self.first = torch.randint(1, EVENTS, (n,))

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        events = (self.first[index] + 3 * torch.arange(int(self.lengths[index]))) % (EVENTS - 1) + 1
        padded = F.pad(events, (1, 0), value=PAD)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(FRAMES, BANDS, generator=generator) + self.first[index] / EVENTS, padded


def collate(items):
    spectrograms, events = zip(*items, strict=True)
    return torch.stack(spectrograms), nn.utils.rnn.pad_sequence(events, batch_first=True, padding_value=PAD)


model, step = Transcriber(), 0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Segments(), batch_size=BATCH, shuffle=True, collate_fn=collate)
start, EPOCHS = time.perf_counter(), 4
for epoch in range(EPOCHS):
    for spectrogram, events in loader:
        logits = model(spectrogram, events[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), events[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"epoch {epoch}: step {step}: loss {loss.item():.4f}", flush=True)
print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")
