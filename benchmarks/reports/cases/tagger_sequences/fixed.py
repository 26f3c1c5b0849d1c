"""Tags of words by a recurrent network and a chain of transitions (a conditional random field)."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, TAGS, LONGEST, BATCH, STEPS = 800, 9, 24, 16, 300


class Chain(nn.Module):
    """Negative log likelihood of tag sequences, given the scores of each tag at each word."""

    def __init__(self):
        super().__init__()
        self.moves = nn.Parameter(torch.randn(TAGS, TAGS) * 0.1)
        self.first = nn.Parameter(torch.zeros(TAGS))

    def all_paths(self, scores, inside):
        reached = self.first + scores[:, 0]
        for score, more in zip(scores.unbind(1)[1:], inside.unbind(1)[1:]):
            further = torch.logsumexp(reached[:, :, None] + self.moves, 1) + score
            reached = torch.where(more[:, None], further, reached)
        return reached.logsumexp(1)

    def one_path(self, scores, tags, inside):
        emitted = (scores.gather(2, tags[:, :, None]).squeeze(2) * inside).sum(1)
        moved = (self.moves[tags[:, :-1], tags[:, 1:]] * inside[:, 1:]).sum(1)
        return self.first[tags[:, 0]] + emitted + moved

    def forward(self, scores, tags, lengths):
        inside = torch.arange(scores.shape[1]) < lengths[:, None]
        return (self.all_paths(scores, inside) - self.one_path(scores, tags, inside)).mean()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True, bidirectional=True)
        self.score = nn.Linear(128, TAGS)

    def forward(self, words):
        return self.score(self.lstm(self.embed(words))[0])


def sentences():
    lengths = torch.randint(8, LONGEST + 1, (BATCH,))
    words = torch.randint(0, WORDS, (BATCH, LONGEST))
    tags = (words + words.roll(1, 1)) % TAGS
    return words, tags, lengths


tagger, chain = Tagger(), Chain()
optimizer = torch.optim.Adam([*tagger.parameters(), *chain.parameters()], lr=3e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    words, tags, lengths = sentences()
    loss = chain(tagger(words), tags, lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
