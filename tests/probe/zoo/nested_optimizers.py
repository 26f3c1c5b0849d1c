"""Two optimizers per step, one of which calls the step of its base class inside its own; 25 steps."""

import torch
from finger import Finger


class Clipped(torch.optim.SGD):
    """SGD that clips before it steps, as a user would write it."""

    def step(self, closure=None):
        """Clips and steps."""
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


torch.manual_seed(7)
body = torch.nn.Linear(16, 32)
head = torch.nn.Linear(32, 4)
of_body, of_head = Clipped(body.parameters(), lr=0.05), torch.optim.Adam(head.parameters(), lr=1e-3)
finger = Finger()
for _ in range(25):
    inputs = torch.randn(16, 16)
    of_body.zero_grad()
    of_head.zero_grad()
    loss = torch.nn.functional.cross_entropy(head(body(inputs).relu()), inputs[:, :4].argmax(1))
    loss.backward()
    of_body.step()
    of_head.step()
    finger.loss(loss)
finger.show(*body.parameters(), *head.parameters())
