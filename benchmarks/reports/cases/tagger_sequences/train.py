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

    def all_paths(self, scores):
        reached = self.first + scores[0]
        for score in scores[1:]:  # culprit-too
            reached = torch.logsumexp(reached[:, None] + self.moves, 0) + score  # culprit
        return reached.logsumexp(0)  # culprit-too

    def one_path(self, scores, tags):
        emitted = scores.gather(1, tags[:, None]).sum()  # culprit-too
        return self.first[tags[0]] + emitted + self.moves[tags[:-1], tags[1:]].sum()  # culprit-too

    def forward(self, scores, tags, lengths):
        losses = []
        for score, tag, length in zip(scores, tags, lengths.tolist()):  # culprit
            score, tag = score[:length], tag[:length]  # culprit-too
            losses.append(self.all_paths(score) - self.one_path(score, tag))  # culprit
        return torch.stack(losses).mean()


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
    loss = chain(tagger(words), tags, lengths)  # culprit-too
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
