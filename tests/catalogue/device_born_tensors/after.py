"""Noise, targets and positions made on the host and copied in every step."""

import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(8, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, noise):
        places = torch.arange(noise.shape[1], device=noise.device).unsqueeze(0)
        return self.last(self.places(places) + noise).mean(dim=1)


def batches(device):
    for _ in range(4):
        yield torch.rand(16, 8, 4, device=device)


def epoch(model, optimizer, device):
    total = torch.zeros(1, device=device)
    for noise in batches(device):
        optimizer.zero_grad()
        loss = model(noise).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Scorer().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        noise = torch.randn(16, 8, 4, device=device)
        target = torch.full((16, 1), 0.5, dtype=torch.float32, device=device)
        scale = torch.tensor([1.0, 2.0], device=device)
        optimizer.zero_grad()
        loss = (model(noise) - target).square().mean() * scale[step % 2]
        loss.backward()
        optimizer.step()
    for _ in range(2):
        print(f"sum of losses: {epoch(model, optimizer, device).item():.3f}")
        noise = torch.empty(16, 8, 4, device=device).uniform_()
        print(f"mean: {model(noise).mean().item():.3f}")


if __name__ == "__main__":
    main()
