"""A wrapper for many devices round a model on one."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
