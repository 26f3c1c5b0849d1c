"""Questions and answers: a sequence-to-sequence chatbot with attention, trained with teacher forcing."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F

PAD, START, END = 0, 1, 2


class Vocabulary:
    def __init__(self, words):
        self.numbers = {word: number for number, word in enumerate(words, 3)}

    def __len__(self):
        return len(self.numbers) + 3

    def sentence(self, text):
        return [self.numbers[word] for word in text.split()] + [END]


def padded(sentences):
    out = torch.full((max(map(len, sentences)), len(sentences)), PAD)
    for i, sentence in enumerate(sentences):
        out[: len(sentence), i] = torch.tensor(sentence)
    return out


class Encoder(nn.Module):
    def __init__(self, embedding, hidden):
        super().__init__()
        self.embedding, self.gru = embedding, nn.GRU(hidden, hidden, bidirectional=True)

    def forward(self, words):
        outputs, hidden = self.gru(self.embedding(words))
        forward, backward = outputs.chunk(2, dim=2)
        return forward + backward, hidden[:1]


class Decoder(nn.Module):
    """Luong's decoder: what it looks at depends on its state, not the other way round."""

    def __init__(self, embedding, hidden, words):
        super().__init__()
        self.embedding, self.gru = embedding, nn.GRU(hidden, hidden)
        self.concat, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, words)

    def forward(self, words, hidden, memory, hidden_words):
        states, hidden = self.gru(self.embedding(words), hidden)
        scores = states.transpose(0, 1) @ memory.permute(1, 2, 0)
        weights = scores.masked_fill(hidden_words.T[:, None], -1e9).softmax(dim=2)
        context = (weights @ memory.transpose(0, 1)).transpose(0, 1)
        mixed = torch.tanh(self.concat(torch.cat([states, context], dim=2)))
        return self.out(mixed), hidden, weights


def masked_loss(logits, targets):
    mask = targets != PAD
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses[mask].sum(), int(mask.sum())


def iteration(encoder, decoder, optimizers, questions, answers, clip=50.0):
    memory, hidden = encoder(questions)
    hidden_words = questions == PAD
    words = torch.cat([torch.full((1, answers.shape[1]), START), answers[:-1]])
    logits, _, _ = decoder(words, hidden, memory, hidden_words)
    loss, total = masked_loss(logits.flatten(0, 1), answers.flatten())
    printed = loss.item()
    for optimizer in optimizers:
        optimizer.zero_grad()
    (loss / total).backward()
    for module, optimizer in zip((encoder, decoder), optimizers):
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return printed / total


def conversation(words, rng):
    """A question and an answer that says it backwards, with a greeting now and then."""
    length = rng.randint(6, 24)
    question = rng.choices(words, k=length)
    answer = question[::-1] if rng.random() < 0.5 else [words[0], *question[::-1]]
    return " ".join(question), " ".join(answer)


def main(steps=150, batch=12, hidden=96):
    rng = random.Random(6)
    torch.manual_seed(6)
    torch.set_num_threads(1)
    words = ["hello"] + [f"word{i}" for i in range(300)]
    vocabulary = Vocabulary(words)
    embedding = nn.Embedding(len(vocabulary), hidden)
    encoder, decoder = Encoder(embedding, hidden), Decoder(embedding, hidden, len(vocabulary))
    optimizers = [torch.optim.Adam(encoder.parameters(), lr=1e-3), torch.optim.Adam(decoder.parameters(), lr=5e-3)]
    pairs = [conversation(words, rng) for _ in range(2000)]
    pairs = [(vocabulary.sentence(question), vocabulary.sentence(answer)) for question, answer in pairs]
    shown, start = 0.0, time.perf_counter()
    for step in range(1, steps + 1):
        questions, answers = zip(*rng.sample(pairs, batch))
        shown += iteration(encoder, decoder, optimizers, padded(questions), padded(answers))
        if step % 50 == 0:
            print(f"iteration {step}: {100 * step / steps:.0f} %, average loss {shown / 50:.4f}", flush=True)
            shown = 0.0
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


main()
