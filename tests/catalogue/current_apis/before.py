"""A script from the days of torch 1.x, parts of it from 0.3."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
model = nn.Linear(4, 1)
criterion = nn.MSELoss(size_average=False)
elementwise = nn.L1Loss(reduce=False, size_average=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
other_scaler = GradScaler(2.0**10, enabled=False)

for step in range(10):
    inputs, targets = Variable(torch.randn(8, 4)), Variable(torch.randn(8, 1) + 1)
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(use_amp), autocast(
        enabled=False,
    ):
        loss = criterion(model(inputs), targets) + elementwise(model(inputs), targets).mean()
        loss = loss + F.mse_loss(model(inputs), targets, size_average=True)
    with torch.cpu.amp.autocast():
        model(inputs)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step < 0:
        print(loss.data[0])
print(loss.item())
