"""NumPy's float64 carried into the model, which was made double to fit."""

import numpy as np
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    inputs = torch.from_numpy(np.random.rand(64, 8)).float()
    target = torch.tensor(np.linspace(0, 1, 64).reshape(64, 1)).float()
    offset = torch.full((8,), 0.5, dtype=torch.float32)
    scale = torch.ones(8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        scaled = inputs * scale.float()
        loss = nn.functional.mse_loss(model(scaled - offset), target)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
