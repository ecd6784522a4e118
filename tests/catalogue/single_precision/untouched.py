"""float32 all the way, and float64 where it does no harm."""

import numpy as np
import torch
from torch import nn
from mylib import load

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# cast on the way, at once or by name
inputs = torch.from_numpy(np.random.rand(64, 8)).float()
more = torch.from_numpy(np.random.rand(64, 8))
more = more.float()
typed = torch.tensor(np.zeros(8), dtype=torch.float32)
single = torch.from_numpy(np.random.rand(64, 8).astype(np.float32))
whole = torch.from_numpy(np.arange(8))
unknown = torch.from_numpy(load("x.npy"))

# a sum that wants its digits, beside the model
total = torch.zeros((), dtype=torch.float64)
for _ in range(4):
    optimizer.zero_grad()
    loss = model(inputs).mean()
    loss.backward()
    optimizer.step()
    total += loss.detach().double()

torch.from_numpy(np.zeros(3))  # hotlap: ignore[single-precision]
