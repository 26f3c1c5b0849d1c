"""torch.func all the way: grad of a functional call, no optimizer, no Tensor.backward; 30 steps."""

import torch
from finger import Finger
from torch.func import functional_call, grad_and_value

torch.manual_seed(11)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def loss_of(parameters, inputs, targets):
    """The loss as a function of the parameters."""
    return torch.nn.functional.cross_entropy(functional_call(model, parameters, (inputs,)), targets)


gradient = grad_and_value(loss_of)
finger = Finger()
for _ in range(30):
    inputs = torch.randn(16, 16)
    slopes, loss = gradient(weights, inputs, inputs[:, :4].argmax(1))
    weights = {name: weight - 0.05 * slopes[name] for name, weight in weights.items()}
    finger.loss(loss)
finger.show(*weights.values())
