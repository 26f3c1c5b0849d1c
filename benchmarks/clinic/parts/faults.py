"""Faults of generated jobs, each with an idiomatic twin.

A template marks the lines that are to blame with `#!`; the mark does not reach the job. In host work `key` is a number
that changes from call to call, and AMOUNT is the dose. The twin of host work does the same once, before the training.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT = ("input-wait", "too-few-workers", "per-sample-fetch", "slow-collate", "batch-preparation")
"""Findings that say: making the batch is what the step waits for."""
HOST = ("python-time", "batch-preparation")
"""Findings that say: the user's own Python takes the time; the line tells which."""
LOADED = ("item", "collate", "sampler", "generator")
"""Places that make a batch."""


@dataclass(frozen=True)
class Fault:
    """cause: in the field's words. setup: module-level code that both have. faulty, twin: the lines at the place.
    places: where it can stand. rules: names of steptime's rules that say it, next to those of its place; a finding on a
    marked line that says host time says it too. known: whether some rule is about it. dosed: AMOUNT changes its cost.
    most: largest AMOUNT. batch: it reads the
    batch and the model's output, which rollouts do not have."""

    name: str
    cause: str
    faulty: str
    twin: str = "pass"
    setup: str = ""
    places: tuple[str, ...] = ("item", "collate", "sampler", "generator", "before", "after", "hook", "callback", "loss")
    rules: tuple[str, ...] = ()
    known: bool = False
    dosed: bool = True
    most: int = 1 << 16
    ranks: int = 1
    batch: bool = False


HOST_WORK = (
    Fault(
        "json", "metadata parsed on every access",
        "meta = json.loads(RECORDS[key % 64])  #!", "meta = PARSED[key % 64]",
        setup="""
import json

RECORDS = [json.dumps({f"field{n}": n * 0.5 + i for n in range(4 * AMOUNT)}) for i in range(64)]
PARSED = [json.loads(record) for record in RECORDS]
"""),
    Fault(
        "regex", "text cleaned on every access",
        'text = PATTERN.sub(" ", TEXTS[key % 64])  #!', "text = CLEANED[key % 64]",
        setup="""
import re

PATTERN = re.compile(r"[^a-z ]+")
TEXTS = [f"It was {i} o'clock; " * AMOUNT for i in range(64)]
CLEANED = [PATTERN.sub(" ", text) for text in TEXTS]
"""),
    Fault(
        "zlib", "blob decompressed on every access",
        "raw = zlib.decompress(BLOBS[key % 64])  #!", "raw = UNPACKED[key % 64]",
        setup="""
import zlib

UNPACKED = [np.random.default_rng(i).integers(0, 9, 1024 * AMOUNT, dtype=np.uint8).tobytes() for i in range(64)]
BLOBS = [zlib.compress(raw) for raw in UNPACKED]
"""),
    Fault(
        "checksum", "checksum on every access",
        "digest = hashlib.sha256(BLOBS[key % 64]).hexdigest()  #!", "digest = DIGESTS[key % 64]",
        setup="""
import hashlib

BLOBS = [bytes([i]) * (2048 * AMOUNT) for i in range(64)]
DIGESTS = [hashlib.sha256(blob).hexdigest() for blob in BLOBS]
"""),
    Fault(
        "deepcopy", "configuration copied deeply",
        "options = copy.deepcopy(OPTIONS)  #!", "options = OPTIONS",
        setup="""
import copy

OPTIONS = {f"group{n}": {"scale": n, "steps": [n, n + 1], "name": str(n)} for n in range(AMOUNT)}
"""),
    Fault(
        "sorting", "ranking sorted again",
        "order = sorted(SCORES[key % 64], key=lambda score: -score)  #!", "order = ORDERS[key % 64]",
        setup="""
SCORES = [np.random.default_rng(i).random(20 * AMOUNT).tolist() for i in range(64)]
ORDERS = [sorted(scores, key=lambda score: -score) for scores in SCORES]
"""),
    Fault(
        "characters", "characters looked up one by one",
        "ids = [VOCABULARY.get(letter, 0) for letter in TEXTS[key % 64]]  #!", "ids = IDS[key % 64]",
        setup="""
VOCABULARY = {letter: n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz ", 1)}
TEXTS = ["the quick brown fox %d " % i * AMOUNT for i in range(64)]
IDS = [[VOCABULARY.get(letter, 0) for letter in text] for text in TEXTS]
"""),
    Fault(
        "dates", "dates parsed on every access",
        'days = [datetime.strptime(day, "%Y-%m-%d").toordinal() for day in DATES]  #!', "days = DAYS",
        setup="""
from datetime import datetime

DATES = [f"20{n % 30:02d}-0{n % 9 + 1}-1{n % 9}" for n in range(AMOUNT)]
DAYS = [datetime.strptime(day, "%Y-%m-%d").toordinal() for day in DATES]
"""),
    Fault(
        "permutation", "a whole index shuffled for a few of it",
        "chosen = np.random.permutation(500 * AMOUNT)[:16]  #!", "chosen = np.random.randint(0, 500 * AMOUNT, 16)"),
    Fault(
        "csv", "a text file parsed on every access",
        'table = np.loadtxt(FILES[key % 8], delimiter=",")  #!', "table = TABLES[key % 8]",
        setup="""
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp())
TABLES = [np.random.default_rng(i).random((4 * AMOUNT, 4)) for i in range(8)]
FILES = [FOLDER / f"{i}.csv" for i in range(8)]
for file, values in zip(FILES, TABLES):
    np.savetxt(file, values, delimiter=",", fmt="%.4f")
"""),
    Fault(
        "sleeping", "waiting for a remote store",
        "time.sleep(AMOUNT * 2e-5)  #!", "pass", setup="\nimport time\n"),
    Fault(
        "pickling", "a history serialised again",
        "size = len(pickle.dumps(HISTORY))  #!", "size = len(HISTORY)",
        setup="""
import pickle

HISTORY = [{"epoch": n, "metric": n / 7} for n in range(10 * AMOUNT)]
"""),
    Fault(
        "counting", "votes counted in Python",
        "for vote in VOTES[key % 64]:  #!\n    totals[vote] += 1  #!", "totals.update(TOTALS[key % 64])",
        setup="""
from collections import Counter

VOTES = [np.random.default_rng(i).integers(0, 9, 10 * AMOUNT).tolist() for i in range(64)]
TOTALS = [Counter(votes) for votes in VOTES]
totals = Counter()
"""),
    Fault(
        "formatting", "a line formatted that nobody reads",
        'line = ", ".join(f"{value:.4f}" for value in VALUES)  #!', "line = VALUES",
        setup="""
VALUES = np.random.default_rng(0).random(10 * AMOUNT).tolist()
"""),
    Fault(
        "listing", "a folder listed again",
        'names = sorted(FOLDER.glob("*.txt"))  #!', "names = NAMES",
        setup="""
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp())
for n in range(2 * AMOUNT):
    (FOLDER / f"{n}.txt").touch()
NAMES = sorted(FOLDER.glob("*.txt"))
""", most=2000),
    Fault(
        "distance", "an edit distance in Python",
        "near = edit_distance(WORDS[key % 64], WORDS[(key + 1) % 64])  #!", "near = DISTANCES[key % 64]",
        setup="""
def edit_distance(first, second):
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(second, 1):  #!
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))  #!
    return row[-1]


WORDS = [f"word{i}" * max(1, AMOUNT // 4) for i in range(64)]
DISTANCES = [i % 5 for i in range(64)]
""", most=400),
    Fault(
        "base64", "features decoded from text",
        'row = struct.unpack(f"{64 * AMOUNT}f", base64.b64decode(ENCODED[key % 64]))  #!', "row = ROWS[key % 64]",
        setup="""
import base64
import struct

ROWS = [np.random.default_rng(i).random(64 * AMOUNT, dtype=np.float32) for i in range(64)]
ENCODED = [base64.b64encode(row.tobytes()) for row in ROWS]
"""),
    Fault(
        "decimals", "sums of decimals",
        "total = sum(Decimal(price) for price in PRICES)  #!", "total = TOTAL",
        setup="""
from decimal import Decimal

PRICES = [f"{n}.{n % 100:02d}" for n in range(4 * AMOUNT)]
TOTAL = sum(Decimal(price) for price in PRICES)
"""),
    Fault(
        "xml", "an annotation parsed on every access",
        "boxes = [box.get('x') for box in ElementTree.fromstring(DOCUMENTS[key % 16])]  #!", "boxes = BOXES[key % 16]",
        setup="""
from xml.etree import ElementTree

DOCUMENTS = ["<all>" + "<box x='1' y='2'/>" * (4 * AMOUNT) + "</all>" for _ in range(16)]
BOXES = [[box.get("x") for box in ElementTree.fromstring(document)] for document in DOCUMENTS]
"""),
    Fault(
        "similarity", "a fuzzy match against every name",
        "best = difflib.get_close_matches(WORDS[key % 16], NAMES, n=1)  #!", "best = WORDS[key % 16]",
        setup="""
import difflib

NAMES = [f"station {n * 7919 % 100003}" for n in range(AMOUNT)]
WORDS = [f"station {n}" for n in range(16)]
"""),
    Fault(
        "histogram", "a histogram of all that was seen",
        "counts, _ = np.histogram(SIGNAL, bins=64)  #!", "counts = COUNTS",
        setup="""
SIGNAL = np.random.default_rng(0).random(1000 * AMOUNT)
COUNTS = np.histogram(SIGNAL, bins=64)[0]
"""),
)  # fmt: skip
"""Causes that a reader of training scripts meets; rules know them by their place and line only."""

IN_THE_LOOP = ("after", "callback")
TORCH_WORK = (
    Fault(
        "gradient norms", "norms of gradients taken one by one", places=IN_THE_LOOP, dosed=False, known=True,
        faulty="norm = sum(p.grad.norm().item() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5  #!",
        rules=("metrics-in-step", "dispatch-loop", "logging-in-step", "host-sync")),
    Fault(
        "averaged weights", "averaged weights by state_dict", places=IN_THE_LOOP, dosed=False, known=True,
        setup="\nshadow = {}\n",
        faulty="""
for name, value in model.state_dict().items():  #!
    shadow[name] = shadow.get(name, value) * 0.99 + value * 0.01  #!
""", rules=("dispatch-loop",)),
    Fault(
        "best model", "the best model copied in every step", places=IN_THE_LOOP, dosed=False,
        setup="\nimport copy\n", faulty="best = copy.deepcopy(model.state_dict())  #!",
        rules=("dispatch-loop", "checkpoint-in-step")),
    Fault(
        "saving", "a checkpoint in every step", places=IN_THE_LOOP, dosed=False, known=True,
        setup='\nimport tempfile\nfrom pathlib import Path\n\nCHECKPOINTS = Path(tempfile.mkdtemp())\n',
        faulty='torch.save(model.state_dict(), CHECKPOINTS / "last.pt")  #!',
        rules=("checkpoint-in-step", "slow-checkpoint")),
    Fault(
        "counting hits", "hits counted one sample at a time", places=("after",), known=True, most=64, batch=True,
        faulty="""
for guess, answer in zip(output.detach().flatten().repeat(AMOUNT)[:64 * AMOUNT], y.flatten().repeat(AMOUNT)):  #!
    HITS[0] += int(guess.item() == answer.item())  #!
""", twin="HITS[0] += int((output.detach().flatten()[: len(y)] == y.flatten()).sum())", setup="\nHITS = [0]\n",
        rules=("metrics-in-step", "dispatch-loop", "indexing-in-loop", "host-sync")),
    Fault(
        "second look", "a second forward for the log", places=("after",), most=8, batch=True,
        faulty="""
with torch.no_grad():
    for _ in range(AMOUNT):
        check = model(x)  #!
"""),
    Fault(
        "singular values", "singular values of a weight in every step", places=(*IN_THE_LOOP, "loss"), most=512,
        setup="\nPROBE = torch.randn(4 * AMOUNT, 64)\n", faulty="spectrum = torch.linalg.svdvals(PROBE)  #!",
        rules=("dominant-operator",)),
    Fault(
        "finite checks", "every gradient checked to be finite", places=IN_THE_LOOP, dosed=False, known=True,
        faulty="""
for p in model.parameters():  #!
    if p.grad is not None and not torch.isfinite(p.grad).all():  #!
        raise RuntimeError("not finite")
""", rules=("metrics-in-step", "dispatch-loop", "host-sync")),
    Fault(
        "collecting", "garbage collected in every step", places=IN_THE_LOOP, dosed=False, known=True,
        setup="\nimport gc\n", faulty="gc.collect()  #!", rules=("garbage-collection",)),
    Fault(
        "rows of lists", "a tensor made of lists of numbers", places=("before", "collate"), known=True,
        setup="\nROWS = np.random.default_rng(0).random((4 * AMOUNT, 64)).tolist()\nTABLE = torch.tensor(ROWS)\n",
        faulty="extra = torch.tensor(ROWS)  #!", twin="extra = TABLE", rules=("list-conversion",)),
    Fault(
        "loss by sample", "a loss of one sample at a time", places=("loss",), known=True, most=64,
        faulty="""
for row in output.flatten()[: 8 * AMOUNT]:  #!
    loss = loss + 1e-6 * torch.relu(row - 1.0)  #!
""", twin="loss = loss + 1e-6 * torch.relu(output.flatten()[: 8 * AMOUNT] - 1.0).sum()",
        rules=("dispatch-loop", "indexing-in-loop")),
    Fault(
        "pairwise penalty", "all pairs compared", places=("loss",), most=256,
        setup="\nPOINTS = torch.randn(8 * AMOUNT, 16)\n", faulty="spread = torch.cdist(POINTS, POINTS).mean()  #!",
        rules=("dominant-operator",)),
    Fault(
        "pointwise chain", "unfused pointwise operators", places=("loss",), known=True, most=512,
        setup="\nFIELD = torch.rand(2048 * AMOUNT)\n",
        faulty="""
field = FIELD * 1.5  #!
field = field + 0.5  #!
field = field.abs().sqrt()  #!
field = field * field - field  #!
""", rules=("memory-bound-pointwise", "dominant-operator")),
    Fault(
        "weight histogram", "histograms of weights in every step", places=IN_THE_LOOP, most=4096,
        faulty="""
for p in model.parameters():  #!
    torch.histc(p.detach(), bins=AMOUNT)  #!
""", rules=("dispatch-loop", "dominant-operator", "metrics-in-step"), dosed=False),
)  # fmt: skip

ONCE = ("setting",)
SETTINGS = (
    Fault("anomaly", "anomaly detection left on", "torch.autograd.set_detect_anomaly(True)  #!", places=ONCE,
          dosed=False, known=True, rules=("detect-anomaly",)),
    Fault("threads", "more threads than CPUs", "torch.set_num_threads(8)  #!", places=ONCE, dosed=False, known=True,
          rules=("thread-oversubscription",)),
    Fault("one optimizer at a time", "single-tensor optimizer", places=("optimizer",), dosed=False, known=True,
          faulty="optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)  #!",
          rules=("single-tensor-optimizer", "optimizer-share")),
    Fault("workers", "workers started again for each epoch", ", num_workers=2", places=("loader",), dosed=False,
          known=True, rules=("workers-restarted", "too-many-workers")),
)  # fmt: skip

BETWEEN_RANKS = (
    Fault("straggler", "one rank has more to do", places=("before",), ranks=2, known=True,
          faulty="""
if rank == 1:
    for _ in range(200 * AMOUNT):  #!
        marker = str(step)  #!
""", rules=("straggler", "rank-imbalance", *HOST)),
    Fault("metrics exchanged", "every metric reduced by itself", places=("after",), ranks=2,
          faulty="""
for _ in range(4 * AMOUNT):
    torch.distributed.all_reduce(torch.zeros(1))  #!
""", most=512, rules=("exposed-communication",)),
)  # fmt: skip

FAULTS = (*HOST_WORK, *TORCH_WORK, *SETTINGS, *BETWEEN_RANKS)

STRUCTURE = (
    Fault(
        "history", "a mean over all that was ever seen", places=IN_THE_LOOP, rules=("steps-changed", "python-time"),
        setup="\nHISTORY, RUNNING = [], [0.0, 0]\n",
        faulty="""
HISTORY.extend(float(n) for n in range(AMOUNT))  #!
mean = sum(HISTORY) / len(HISTORY)  #!
""", twin="RUNNING[0] += 1.0"),
    Fault(
        "table", "a table of the same values made in every step", places=(*IN_THE_LOOP, "loss"), most=4096,
        setup="\nRATES = torch.rand(256)\nTABLE = torch.outer(torch.arange(2.0 * AMOUNT), RATES).sin()\n",
        faulty="angles = torch.outer(torch.arange(2.0 * AMOUNT), RATES).sin()  #!", twin="angles = TABLE",
        rules=("computed-again", "dominant-operator")),
    Fault(
        "diagonal", "scores of all pairs, of which the diagonal is read", places=(*IN_THE_LOOP, "loss"), most=256,
        setup="\nPOINTS = torch.rand(8 * AMOUNT, 64)\n",
        faulty="near = (POINTS @ POINTS.T).diagonal()  #!", twin="near = (POINTS * POINTS).sum(1)",
        rules=("mostly-unread", "computed-again", "dominant-operator")),
    Fault(
        "iterator", "an iterator of a loader for each batch", places=IN_THE_LOOP, most=2048,
        setup="\nPOOL = DataLoader(range(500 * AMOUNT), batch_size=8, shuffle=True)\n",
        faulty="pick = next(iter(POOL))  #!", twin="pick = torch.zeros(8)", rules=("iterator-in-step",)),
    Fault(
        "one-hot", "rows of a table by a product with one-hot vectors", places=(*IN_THE_LOOP, "loss"), most=1024,
        setup="\nWEIGHTS = torch.rand(16 * AMOUNT, 32)\nPICKED = torch.arange(64) % (16 * AMOUNT)\n",
        faulty="rows = F.one_hot(PICKED, 16 * AMOUNT).float() @ WEIGHTS  #!", twin="rows = WEIGHTS[PICKED]",
        rules=("computed-again", "dominant-operator")),
)  # fmt: skip
"""What people report most: work that grows, is done again, is thrown away, too often, or in a slow way."""
