"""Debugging that somebody switches on, that covers a few steps, or that is no debugging."""

import os

import torch
from torch import nn

args = parse()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.autograd.set_detect_anomaly(False)
torch.autograd.set_detect_anomaly(args.debug)
if args.debug:
    torch.autograd.set_detect_anomaly(True)
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.autograd.gradcheck(model.double(), torch.randn(2, 4, dtype=torch.double, requires_grad=True))


def train(batches):
    for inputs in batches:
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()


with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)) as profiler:
    for inputs in args.batches:
        model(inputs).mean().backward()
        optimizer.step()
        profiler.step()

with torch.autograd.profiler.profile(enabled=args.debug):
    for inputs in args.batches:
        model(inputs).mean().backward()
        optimizer.step()

with torch.autograd.profiler.profile() as profiler:
    for number, inputs in enumerate(args.batches):
        model(inputs).mean().backward()
        optimizer.step()
        if number > 10:
            break

with torch.profiler.profile() as profiler:
    model(args.batches[0])  # one forward pass
print(profiler.key_averages())
