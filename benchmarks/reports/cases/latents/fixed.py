"""Fine-tuning of a latent diffusion model on a handful of pictures of one subject."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Encoder(nn.Module):
    """Pictures to the mean and the logarithm of the variance of their latents."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(48, 48, 3, 1, 1),
            nn.SiLU(),
            nn.Conv2d(48, 8, 3, 2, 1),
        )

    def forward(self, pictures):
        mean, logvar = self.net(pictures).chunk(2, 1)
        return mean, logvar.clamp(-8, 2)


class Denoiser(nn.Module):
    def __init__(self, width=48, words=64):
        super().__init__()
        self.into, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.word = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(4)
        )

    def forward(self, noisy, t, prompt):
        angle = t[:, None] / 1000 * torch.arange(1, 17)
        x = (
            self.into(noisy)
            + (self.time(torch.cat([angle.sin(), angle.cos()], 1)) + self.word(prompt).mean(1))[:, :, None, None]
        )
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def sample(mean, logvar):
    return 0.18 * (mean + torch.exp(0.5 * logvar) * torch.randn_like(mean))


vae, unet = Encoder().eval().requires_grad_(False), Denoiser()
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, weight_decay=1e-2)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
pictures, prompts = torch.rand(24, 3, 128, 128) * 2 - 1, torch.randint(0, 64, (24, 8))
with torch.no_grad():
    latents_cache = [vae(p[None]) for p in pictures]
means, logvars = (torch.cat(part) for part in zip(*latents_cache))
loader = DataLoader(TensorDataset(means, logvars, prompts), batch_size=8, shuffle=True, drop_last=True)
start, done, running = time.perf_counter(), 0, 0.0
for epoch in range(75):
    for mean, logvar, prompt in loader:
        latents = sample(mean, logvar)
        noise = torch.randn_like(latents)
        t = torch.randint(0, 1000, (len(latents),))
        a = alphas[t][:, None, None, None]
        predicted = unet(a.sqrt() * latents + (1 - a).sqrt() * noise, t.float(), prompt)
        loss = nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        running += loss.detach()
        done += 1
    if epoch % 15 == 14:
        print(f"epoch {epoch + 1}: mean loss {running.item() / done:.4f}", flush=True)
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
