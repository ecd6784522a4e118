"""Training loops that tell meters what a step has come to before it goes back. Each gives its log, model and
optimizer."""

import torch
from strange_loops import batches, device, network
from torch.nn import functional as F


class Meter:
    def __init__(self):
        self.value = self.total = self.count = self.mean = 0

    def update(self, value, count=1):
        self.value = value
        self.total += value * count
        self.count += count
        self.mean = self.total / self.count


class Best(Meter):
    def update(self, value, count=1):
        self.value = min(self.value, value)


def hits(out, y, most=(1, 2)):
    with torch.no_grad():
        right = out.topk(max(most), 1).indices.eq(y.view(-1, 1))
        return [right[:, :one].float().sum() * (100.0 / len(y)) for one in most]


def share(out, y):
    return [(out.softmax(1).amax(1) - 0.1 * y).mean()]


def trained():
    model = network(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    return model, optimizer, batches(), []


def meters_first():
    model, optimizer, loader, log = trained()
    losses, first, second = Meter(), Meter(), Meter()
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            loss = F.cross_entropy(out, y)
            one, two = hits(out, y)
            losses.update(loss.item(), x.size(0))
            first.update(one, x.size(0))
            second.update(two, len(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.append(losses.value)
        log += [losses.mean, float(first.mean), second.mean.item(), first.value.item(), second.value.requires_grad]
    return log, model, optimizer


def a_meter_of_what_has_a_gradient():
    model, optimizer, loader, log = trained()
    sure = Meter()
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            loss = F.cross_entropy(out, y)
            (most,) = share(out, y)
            sure.update(most)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.append(sure.value.requires_grad)
        log.append(sure.mean.item())
    return log, model, optimizer


def a_meter_that_does_more():
    model, optimizer, loader, log = trained()
    best = Best()
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y)
            best.update(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.append(best.value)
    return log, model, optimizer


def meters_of_both_and_a_print(limit=3):
    model, optimizer, loader, log = trained()
    losses, first = Meter(), Meter()
    for _ in range(5):
        for number, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            out = model(x)
            loss = F.cross_entropy(out, y)
            one, _ = hits(out, y)
            losses.update(loss.item())
            if number % limit == 0:
                first.update(one.item(), x.size(0))
                log.append(f"{losses.mean:.6f} {first.mean:.2f}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return log, model, optimizer
