"""Trains a little, then evaluates in eval mode but with a graph."""

import functools

import torch
import torch.nn.functional as F
from torch import nn


def logged(function):
    @functools.wraps(function)
    def inner(*args):
        result = function(*args)
        print(function.__name__, result is not None)
        return result

    return inner


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 3)])

    @torch.no_grad()
    def classes(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.argmax(dim=1)


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(model, batches):
    """The mean loss, as a number."""
    model.eval()
    total = 0.0
    for inputs, targets in batches:
        total += F.cross_entropy(model(inputs), targets).item()
    model.train()
    return total / len(batches)


@logged
@torch.no_grad()
def predict(model, inputs):
    model.eval()
    return model(inputs).argmax(dim=1)


def confident(model, inputs):
    return model(inputs).softmax(dim=1).amax()


@torch.no_grad()
def report(model, inputs):
    model.eval()
    print(f"{confident(model, inputs):.4f}")


torch.manual_seed(0)
batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(10)]
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
train(model, batches)
print(f"{validate(model, batches):.4f}", predict(model, batches[0][0]))
report(model, batches[0][0])

model.eval()
with torch.no_grad():
    for inputs, targets in batches:
        right = model(inputs).argmax(dim=1) == targets  # which ones
        print(right.sum())
print(Network().classes(batches[0][0]))
