"""A script from the days of torch 1.x, parts of it from 0.3."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.amp import GradScaler, autocast

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
model = nn.Linear(4, 1)
criterion = nn.MSELoss(reduction="sum")
elementwise = nn.L1Loss(reduction="none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
other_scaler = GradScaler("cuda", 2.0**10, enabled=False)

for step in range(10):
    inputs, targets = torch.randn(8, 4), (torch.randn(8, 1) + 1)
    optimizer.zero_grad()
    with torch.amp.autocast("cuda", enabled=use_amp), autocast(
        "cuda", enabled=False,
    ):
        loss = criterion(model(inputs), targets) + elementwise(model(inputs), targets).mean()
        loss = loss + F.mse_loss(model(inputs), targets, reduction="mean")
    with torch.amp.autocast("cpu"):
        model(inputs)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step < 0:
        print(loss.item())
print(loss.item())
