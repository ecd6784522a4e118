"""Three ways to clear gradients that cost more than they should."""

import torch
from torch import nn


def zeroed_by_hand(model, batches):
    for inputs, targets in batches:
        loss = (model(inputs) - targets).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        for name, parameter in model.named_parameters():
            parameter.grad.detach_()
            parameter.grad.zero_()  # by hand
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.zero_()
    return loss.item()


def zeroed_on_purpose(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in batches:
        optimizer.zero_grad(
            set_to_none=False,
        )
        model.zero_grad(False)
        loss = (model(inputs) - targets).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(12)]
    model = nn.Linear(4, 1)
    print(zeroed_by_hand(model, batches), zeroed_on_purpose(model, batches))


if __name__ == "__main__":
    main()
