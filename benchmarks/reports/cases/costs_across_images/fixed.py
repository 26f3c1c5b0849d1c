"""Set prediction on synthetic layouts: a decoder with object queries and a matching loss."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def assign(cost):
    """Greedy matching of columns to rows, the cheapest first."""
    rows, cols, free = [], [], np.ones(len(cost), dtype=bool)
    for column in cost.min(0).argsort():
        row = int(np.where(free, cost[:, column], np.inf).argmin())
        free[row] = False
        rows.append(row)
        cols.append(int(column))
    return np.array(rows), np.array(cols)


def corners(b):
    xy, wh = b[..., :2], b[..., 2:]
    return torch.cat([xy - wh / 2, xy + wh / 2], -1)


def giou(a, b):
    a, b = corners(a), corners(b)
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    lo, hi = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (hi - lo).clamp(min=0).prod(-1)
    union = area_a[:, None] + area_b[None] - inter
    lo, hi = torch.min(a[:, None, :2], b[None, :, :2]), torch.max(a[:, None, 2:], b[None, :, 2:])
    hull = (hi - lo).clamp(min=0).prod(-1)
    return inter / union - (hull - union) / hull


class SetLoss(nn.Module):
    def __init__(self, per_image=False):
        super().__init__()
        self.per_image = per_image

    @torch.no_grad()
    def cost(self, logits, boxes, labels, gold):
        prob = logits.softmax(-1)
        c = -prob[:, labels] + 5 * torch.cdist(boxes, gold, p=1)
        return c - 2 * giou(boxes, gold)

    def match(self, out, targets):
        pairs = []
        if self.per_image:
            for i, t in enumerate(targets):
                c = self.cost(out["logits"][i], out["boxes"][i], t["labels"], t["boxes"])
                pairs.append(assign(c.numpy()))
            return pairs
        n, q = out["logits"].shape[:2]
        labels = torch.cat([t["labels"] for t in targets])
        gold = torch.cat([t["boxes"] for t in targets])
        whole = self.cost(out["logits"].flatten(0, 1), out["boxes"].flatten(0, 1), labels, gold)
        whole = whole.view(n, q, -1)
        for i, c in enumerate(whole.split([len(t["labels"]) for t in targets], -1)):
            pairs.append(assign(c[i].numpy()))
        return pairs

    def forward(self, out, targets):
        total = 0.0
        for i, (rows, cols) in enumerate(self.match(out, targets)):
            rows, cols = torch.as_tensor(rows), torch.as_tensor(cols)
            want = torch.full((out["logits"].shape[1],), 12)
            want[rows] = targets[i]["labels"][cols]
            total = total + F.cross_entropy(out["logits"][i], want)
            total = total + 5 * F.l1_loss(out["boxes"][i][rows], targets[i]["boxes"][cols])
        return total / len(targets)


class Layouts(Dataset):
    def __init__(self, n, boxes):
        self.n, self.boxes = n, boxes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        k = int(torch.randint(self.boxes // 2, self.boxes, (1,), generator=g))
        box = torch.rand(k, 4, generator=g) * 0.5 + 0.1
        return torch.randn(64, 64, generator=g), {"boxes": box, "labels": torch.randint(0, 12, (k,), generator=g)}


def collate(items):
    return torch.stack([x for x, _ in items]), [t for _, t in items]


class Detector(nn.Module):
    def __init__(self, dim=64, queries=100):
        super().__init__()
        self.inp = nn.Linear(64, dim)
        self.query = nn.Parameter(torch.randn(queries, dim) * 0.1)
        layer = nn.TransformerDecoderLayer(dim, 4, 128, batch_first=True, dropout=0.0)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.cls, self.box = nn.Linear(dim, 13), nn.Linear(dim, 4)

    def forward(self, x):
        memory = self.inp(x)
        h = self.decoder(self.query.expand(x.shape[0], -1, -1), memory)
        return {"logits": self.cls(h), "boxes": self.box(h).sigmoid()}


def main():
    torch.manual_seed(0)
    loader = DataLoader(Layouts(16 * 50, 40), batch_size=16, collate_fn=collate)
    net, crit = Detector(), SetLoss(per_image=True)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for i, (x, targets) in enumerate(loader):
        loss = crit(net(x), targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0:
            print(f"{i}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
