"""Gradients of four batches gathered, and never divided."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
gathered = 4
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=False)

step = 0
for inputs, targets in batches:
    loss = F.mse_loss(model(inputs), targets) + 0.01 * model.weight.abs().sum()
    (loss / gathered).backward()
    step += 1
    if step % gathered == 0:
        optimizer.step()
        optimizer.zero_grad()

for i, (inputs, targets) in enumerate(batches):
    loss = F.mse_loss(model(inputs), targets)
    scaler.scale(loss / 2).backward()
    if (i + 1) % 2 == 0 or i + 1 == len(batches):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(f"{loss.item():.4f}")
