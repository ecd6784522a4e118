"""What is kept without a graph, is needed with it, or does not outlive a step."""

import torch
import torch.nn.functional as F
from torch import nn

model, other = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
total, right, losses, history = 0.0, 0, [], {"loss": []}

for inputs, targets in batches:
    optimizer.zero_grad()
    output = model(inputs)
    loss = F.mse_loss(output, targets)
    loss += F.mse_loss(other(inputs), targets)
    parts = []
    parts.append(loss)
    sum(parts).backward()
    loss.backward()
    optimizer.step()
    total += loss.item()
    total += loss.detach() * len(inputs)
    total += float(loss)
    right += (output > 0).eq(targets > 0).sum().item()
    losses.append(loss.item())
    losses.append(float(loss))
    history["loss"].append(loss.detach())
    with torch.no_grad():
        total += loss

# the sum itself goes backward
for sequence in [batches, batches]:
    optimizer.zero_grad()
    loss, saved = 0, []
    for inputs, targets in sequence:
        loss += F.mse_loss(model(inputs), targets)
        saved.append(loss)
    loss.backward()
    optimizer.step()

# a number already
for inputs, targets in batches:
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    loss = loss.item()
    total += loss
    losses.append(loss)
