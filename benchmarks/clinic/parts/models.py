"""Models of generated jobs: what is trained, on what data, and how large."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """One kind of model. code: defines `build()`. inputs, targets: expressions of tensors of `count` samples, with a
    numpy generator `random`. loss: of `output` and `y`. sizes: (hidden size, batch size) for steps of about 2, 15 and
    80 ms on two CPUs. hooked: the submodule that a hook is put on."""

    name: str
    code: str
    inputs: str
    targets: str
    loss: str
    sizes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    hooked: str = "head"
    tokens: bool = False


CLASSES = "torch.from_numpy(random.integers(0, 10, count))"

MLP = Model(
    "mlp",
    '''
class Network(nn.Module):
    """A plain perceptron."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))
''',
    "torch.from_numpy(random.standard_normal((count, 128), dtype=np.float32))",
    CLASSES,
    "F.cross_entropy(output, y)",
    ((512, 64), (1536, 128), (3072, 256)),
)

CNN = Model(
    "cnn",
    '''
class Network(nn.Module):
    """A few convolutions."""

    def __init__(self, channels=HIDDEN):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * channels, 10)

    def forward(self, x):
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.head(x.mean(dim=(2, 3)))
''',
    "torch.from_numpy(random.standard_normal((count, 3, 32, 32), dtype=np.float32))",
    CLASSES,
    "F.cross_entropy(output, y)",
    ((16, 16), (32, 64), (64, 128)),
)

TRANSFORMER = Model(
    "transformer",
    '''
class Network(nn.Module):
    """A small encoder over tokens."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.embedding = nn.Embedding(500, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)).mean(dim=1))
''',
    "torch.from_numpy(random.integers(0, 500, (count, 32)))",
    CLASSES,
    "F.cross_entropy(output, y)",
    ((32, 8), (96, 24), (192, 64)),
    tokens=True,
)

RECURRENT = Model(
    "recurrent",
    '''
class Network(nn.Module):
    """A recurrent network over a signal."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.cells = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        states, _ = self.cells(x)
        return self.head(states[:, -1]).squeeze(-1)
''',
    "torch.from_numpy(random.standard_normal((count, 24, 16), dtype=np.float32))",
    "torch.from_numpy(random.standard_normal(count, dtype=np.float32))",
    "F.mse_loss(output, y)",
    ((32, 8), (128, 48), (256, 192)),
)

EMBEDDING = Model(
    "embedding-heavy",
    '''
class Network(nn.Module):
    """Many small tables, and a tower on top."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(400, 16) for _ in range(12))
        self.tower = nn.Sequential(nn.Linear(12 * 16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        columns = [table(x[:, number]) for number, table in enumerate(self.tables)]
        return self.head(self.tower(torch.cat(columns, dim=1))).squeeze(-1)
''',
    "torch.from_numpy(random.integers(0, 400, (count, 12)))",
    "torch.from_numpy(random.integers(0, 2, count).astype(np.float32))",
    "F.binary_cross_entropy_with_logits(output, y)",
    ((256, 64), (1024, 256), (2048, 512)),
)

MODELS = (MLP, CNN, TRANSFORMER, RECURRENT, EMBEDDING)
