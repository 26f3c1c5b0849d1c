"""After each update the model is probed on held-out rows, in evaluation mode, by a method of its trainer."""

import torch


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
        self.rule = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.held = torch.randn(4096, 32), torch.randint(0, 4, (4096,))

    def probe(self):
        self.net.eval()
        with torch.inference_mode():
            right = (self.net(self.held[0]).argmax(1) == self.held[1]).float().mean()
        self.net.train()
        return right

    def learn(self, rows, labels):
        self.rule.zero_grad()
        torch.nn.functional.cross_entropy(self.net(rows), labels).backward()
        self.rule.step()
        return self.probe()


if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(40 * 16, 32), torch.randint(0, 4, (40 * 16,)))
    trainer = Trainer()
    for rows, labels in torch.utils.data.DataLoader(data, batch_size=16):
        score = trainer.learn(rows, labels)
    print(float(score))
