"""Keyword spotting from recordings of three sample rates."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TARGET = 16000


def sinc_filters(old, new, width=6, rolloff=0.99):
    """Filters for each phase of the output, as one tensor (new, 1, taps)."""
    cut = min(old, new) * rolloff
    reach = math.ceil(width * old / cut)
    grid = torch.arange(-reach, reach + old, dtype=torch.float64) / old
    rows = []
    for phase in range(new):
        t = ((grid - phase / new) * cut).clamp(-width, width)  # culprit-too
        window = torch.cos(t * math.pi / width / 2) ** 2  # culprit-too
        rows.append(torch.where(t == 0, torch.ones_like(t), torch.sin(t * math.pi) / (t * math.pi)) * window)  # culprit-too
    return (torch.stack(rows).unsqueeze(1) * cut / old).float(), reach


class Resampler:
    def __init__(self, keep=False):
        self.known, self.keep = {}, keep

    def filters(self, old, new):
        if not self.keep:
            return sinc_filters(old, new)  # culprit
        if (old, new) not in self.known:
            self.known[old, new] = sinc_filters(old, new)
        return self.known[old, new]

    def __call__(self, wave, rate):
        if rate == TARGET:
            return wave
        common = math.gcd(rate, TARGET)
        old, new = rate // common, TARGET // common
        kernel, reach = self.filters(old, new)  # culprit-too
        padded = torch.nn.functional.pad(wave[None, None], (reach, reach + old))
        out = torch.nn.functional.conv1d(padded, kernel, stride=old)
        return out.transpose(1, 2).reshape(-1)


class Recordings(Dataset):
    def __init__(self, n, keep_filters=False):
        self.n, self.resample = n, Resampler(keep_filters)
        g = torch.Generator().manual_seed(0)
        self.waves = {rate: torch.randn(24, rate, generator=g) * 0.1 for rate in (16000, 22050, 44100)}

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rate = (16000, 22050, 44100)[i % 3]
        wave = self.resample(self.waves[rate][i % 24], rate)
        wave = torch.nn.functional.pad(wave[:TARGET], (0, max(0, TARGET - len(wave))))
        return wave, i % 20


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.conv = nn.Sequential(nn.Conv1d(201, 96, 3, padding=1), nn.ReLU(), nn.Conv1d(96, 96, 3, padding=1), nn.ReLU(),
                                  nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, 20))

    def forward(self, wave):
        s = torch.stft(wave, 400, 160, window=self.window, return_complex=True).abs()
        return self.conv((s + 1e-4).log())


def main():
    torch.manual_seed(0)
    data = Recordings(8 * 51, keep_filters=False)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    net = Spotter()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i, (wave, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(wave), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0:
            print(f"{i}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
