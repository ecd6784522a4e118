"""Passes that Python takes part in: what a recording would do only once, or not at all."""

import torch
import torch.nn.functional as F
from mylib import loader, meter, model, other, optimizer, penalty

device = torch.device("cuda")
model = model.to(device)
hidden = None

# a number is needed, or somebody is told, between forward and backward
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    meter.judge(loss.item())
    loss.backward()
    optimizer.step()

# whether a step goes back is decided
for number, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    if loss < 10:
        loss.backward()
    optimizer.step()

# one pass goes back through what another has made
for x, y in loader:
    optimizer.zero_grad()
    made = model(x.to(device))
    made.mean().backward()
    (made + model(y.to(device))).mean().backward()
    optimizer.step()

# whether a part of the loss is there is decided
for x, y in loader:
    output = model(x.to(device))
    if model.is_checked:
        extra = penalty(output)
    loss = F.cross_entropy(output, y.to(device)) + extra
    loss.backward()
    optimizer.step()

# added up over the parts of a batch
for x, y in loader:
    loss = 0
    for part in x.chunk(2):
        loss = loss + model(part.to(device)).mean()
    loss.backward()
    optimizer.step()

# the forward pass is hidden from the one that goes back
for x, y in loader:
    loss = other(x)
    print(loss)
    loss.backward()
    optimizer.step()

# kept elsewhere
for x, y in loader:
    meter.output = model(x.to(device))
    meter.output.mean().backward()
    optimizer.step()


def closing(x):
    def closure():
        optimizer.zero_grad()
        loss = model(x.to(device)).mean()
        loss.backward()
        return loss

    return closure


for x, y in loader:
    optimizer.step(closing(x))


class Keeping:
    def run(self):
        for x, y in loader:
            self.state = model(x.to(device), self.state)
            self.state.mean().backward()
            optimizer.step()


def generating():
    for x, y in loader:
        loss = model(x.to(device)).mean()
        loss.backward()
        optimizer.step()
        yield loss
