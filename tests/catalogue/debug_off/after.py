"""Debugging left on."""

import os

os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "0")

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import detect_anomaly

torch.autograd.set_detect_anomaly(False)  # found the NaN last week


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(24):
        inputs = torch.randn(16, 8)
        with torch.autograd.set_detect_anomaly(mode=False):
            loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
        with torch.autograd.set_detect_anomaly(False):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
