"""Teams from skills: which experts fit a project? A feed-forward network over many experts, short epochs."""

import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class TeamRecommender(nn.Module):
    def __init__(self, skills, experts, width=96):
        super().__init__()
        self.skills = nn.EmbeddingBag(skills, width, mode="mean")
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, width), nn.LeakyReLU())
        self.experts = nn.Linear(width, experts)

    def forward(self, skills):
        return self.experts(self.hidden(self.skills(skills)))


class Projects:
    """Projects need some skills and had some experts; experts know skills that are near to their number."""

    def __init__(self, count, skills, experts, needed=6, size=3):
        self.skills = torch.randint(skills, (count, needed))
        near = self.skills[:, :size] * experts // skills
        self.teams = (near + torch.randint(-2, 3, near.shape)).clamp(0, experts - 1)

    def batches(self, size):
        for rows in torch.randperm(len(self.skills)).split(size):
            yield self.skills[rows], self.teams[rows]


class Fold:
    """Training of one fold, with its best and its last state on disk."""

    def __init__(self, folder, projects, held_out, model, rate=1e-3, batch=32):
        self.folder, self.projects, self.held_out = folder, projects, held_out
        self.model, self.batch = model, batch
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        self.steps, self.best = 0, float("inf")

    def loss(self, skills, teams):
        logits = self.model(skills)
        negatives = torch.randint(logits.shape[1], (len(teams), 12))
        wanted, unwanted = logits.gather(1, teams), logits.gather(1, negatives)
        return F.softplus(-wanted).mean() + F.softplus(unwanted).mean()

    def epoch(self):
        self.model.train()
        for skills, teams in self.projects.batches(self.batch):
            loss = self.loss(skills, teams)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return self.loss(self.held_out.skills, self.held_out.teams).item()

    def save(self, epoch, value):
        state = {
            "epoch": epoch,
            "value": value,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.folder / f"fold0.e{epoch}.pt")  # culprit
        for old in sorted(self.folder.glob("fold0.e*.pt"), key=lambda path: path.stat().st_mtime)[:-2]:
            old.unlink()

    def fit(self, epochs):
        for epoch in range(1, epochs + 1):
            loss = self.epoch()
            value = self.validate()
            self.best = min(self.best, value)
            self.save(epoch, value)  # culprit-too
            if epoch % 30 == 0:
                print(f"epoch {epoch}: loss {loss:.4f}, held out {value:.4f}, best {self.best:.4f}", flush=True)


def main(folder):
    torch.manual_seed(8)
    torch.set_num_threads(1)
    skills, experts = 4000, 9000
    model = TeamRecommender(skills, experts)
    fold = Fold(Path(folder), Projects(64, skills, experts), Projects(64, skills, experts), model)
    start = time.perf_counter()
    fold.fit(epochs=90)
    print(f"{fold.steps} steps, {1e3 * (time.perf_counter() - start) / fold.steps:.2f} ms/step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
