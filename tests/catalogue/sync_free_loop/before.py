"""The host waits for the device several times a step, and at every evaluation batch."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, device):
    total, right, history = 0.0, 0, []
    for number, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        answers = model(inputs)
        loss = nn.functional.cross_entropy(answers, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += int((answers.argmax(dim=1) == labels).sum())
        history.append(answers.detach().mean().cpu().numpy())
        if loss > 1e6 or not math.isfinite(loss):
            break
        print(f"{number}: {loss:.4f}")
        if history is not None:
            right += answers.sum().item()
    return total, right, history


def test(model, loader, device):
    right = 0
    with torch.no_grad():
        for inputs, labels in loader:
            out = model(inputs.to(device))
            right += (out.argmax(dim=1) == labels.to(device)).sum().item()
    return right


def check(model, loader, device, classes):
    right = []
    with torch.no_grad():
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            if classes == 1:
                assert labels.max() <= 1
            else:
                assert labels.max() < classes and labels.min() >= 0
            right += (model(inputs).argmax(dim=1) == labels).cpu()
    return right


def whole(model, inputs, labels, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    return score(model, inputs, labels)


def score(model, inputs, labels):
    with torch.no_grad():
        right = (model(inputs).argmax(dim=1) == labels).float()
    return right.mean().item()


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16)
    model = nn.Linear(8, 2).to(device)
    train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), device)
    test(model, loader, device)
    check(model, loader, device, 2)
    inputs, labels = (part.to(device) for part in next(iter(loader)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        print(whole(model, inputs, labels, optimizer))


if __name__ == "__main__":
    main()
