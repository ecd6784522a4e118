"""Evaluation that is already free of gradients, or that wants them."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(4, 3)
batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]


def in_a_block():
    model.eval()
    with torch.no_grad():
        for inputs, targets in batches:
            F.cross_entropy(model(inputs), targets)


@torch.inference_mode()
def decorated():
    model.eval()
    return model(batches[0][0])


def called_without_grad(model):
    model.eval()
    return [model(inputs) for inputs, _ in batches]


with torch.no_grad():
    called_without_grad(model)


def attack(inputs, targets):
    model.eval()
    inputs.requires_grad_(True)
    F.cross_entropy(model(inputs), targets).backward()
    return inputs.grad.sign()


def saliency(inputs):
    model.eval()
    return torch.autograd.grad(model(inputs).max(), inputs)


def train_mode_again(inputs):
    model.eval()
    model.train()
    return model(inputs)


def frozen_norms(inputs, targets, optimizer):
    model.eval()  # batch norm stays as it is, the weights do not
    loss = F.cross_entropy(model(inputs), targets)
    update(loss, optimizer)


def update(loss, optimizer):
    loss.backward()
    optimizer.step()


def written_down(path):
    model.eval()
    torch.onnx.export(model, torch.randn(1, 4), path)
    print(model(torch.randn(1, 4)))


def validate_either_way(inputs, learn):
    model.eval()
    with torch.set_grad_enabled(learn):
        return model(inputs)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def classes(self, x):
        with torch.no_grad():
            return self(x).argmax(dim=1)

    @torch.no_grad()
    def decorated(self, x):
        return self(x).argmax(dim=1)

    def scores(self, x):
        return self(x)

    def best(self, scores):
        return scores.argmax(dim=1)


classifier = Classifier()
classifier.classes(batches[0][0]), classifier.decorated(batches[0][0])
classifier.best(classifier.scores(batches[0][0]))
