"""A plain training loop that times itself, for measuring what watching it costs. Prints seconds a step."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

width, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(32 * 64, width), torch.randint(0, 10, (32 * 64,)))
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=32, shuffle=True)
done, times = 0, []
while done < steps:
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter())
        done += 1
steady = sorted(b - a for a, b in zip(times[steps // 4 :], times[steps // 4 + 1 :], strict=False))
print(steady[len(steady) // 2])
