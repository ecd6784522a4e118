"""Gathering that is right, and conditions that gather nothing."""

import torch
import torch.nn.functional as F
from torch import nn

batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
model, critic = nn.Linear(4, 1), nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
k = 4

for i, (inputs, targets) in enumerate(batches):
    loss = F.mse_loss(model(inputs), targets) / k
    loss.backward()
    if (i + 1) % k == 0 or i + 1 == len(batches):
        optimizer.step()
        optimizer.zero_grad()

for i, (inputs, targets) in enumerate(batches):
    loss = F.mse_loss(model(inputs), targets)
    (loss / k).backward()
    if not (i + 1) % k:
        optimizer.step()
        optimizer.zero_grad()
optimizer.step()

step = 0
for inputs, targets in batches:
    loss = F.mse_loss(model(inputs), targets)
    loss = loss / k
    loss.backward()
    step += 1
    if step % k == 0:  # counts on over the epochs
        optimizer.step()
        optimizer.zero_grad()

for step, (inputs, targets) in enumerate(batches):
    loss = F.mse_loss(model(inputs), targets, reduction="sum")
    loss.backward()
    if (step + 1) % k == 0 or step + 1 == len(batches):
        for p in model.parameters():
            p.grad /= 8 * k
        optimizer.step()
        optimizer.zero_grad()

# an update every k batches that throws the other gradients away, and a schedule
for i, (inputs, targets) in enumerate(batches):
    critic_optimizer.zero_grad()
    loss = F.mse_loss(critic(model(inputs)), targets)
    loss.backward()
    critic_optimizer.step()
    if i % 5 == 0:
        print(loss.item())
    if i % k == 0:
        optimizer.step()
