"""A training that remembers more of its steps than it means to."""

import torch
import torch.nn.functional as F
from torch import nn


class History:
    def __init__(self):
        self.losses = []

    def fill(self, model, optimizer, batches):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            self.losses.append(loss)


def main():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total, weighted, losses, outputs = 0, 0.0, [], []
    for inputs, targets in batches:
        optimizer.zero_grad()
        output = model(inputs)
        loss = F.mse_loss(output, targets)
        loss.backward()
        optimizer.step()
        total += loss  # for the epoch's mean
        weighted = weighted + loss * len(inputs)
        losses.append(loss)
        outputs.append(output.cpu())
        if len(losses) % 4 == 0:
            print(f"{total / len(losses):.4f}")
    history = History()
    history.fill(model, optimizer, batches)
    print(f"{weighted.item():.4f} {torch.stack(losses).mean():.4f} {len(outputs)} {len(history.losses)}")


if __name__ == "__main__":
    main()
