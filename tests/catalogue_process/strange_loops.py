"""Training loops that are unusual and real, as scripts write them. Each gives its log, model and optimizer; what
each changes on the way, a graph would not notice."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(dropped=0.0):
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropped), nn.Linear(16, 8)).to(
        device
    )


def batches(samples=64, width=8):
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(samples, width, generator=generator), torch.randint(0, 8, (samples,), generator=generator)
    data = torch.utils.data.TensorDataset(x, y)
    return torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)


def a_frozen_teacher():
    teacher, model, log = network().eval().requires_grad_(False), network(0.1), []
    optimizer, loader = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches()
    for epoch in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            with torch.no_grad():
                soft = teacher(x)
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y) + F.kl_div(F.log_softmax(out, 1), F.softmax(soft, 1), reduction="batchmean")
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        if epoch == 2:
            teacher.load_state_dict(model.state_dict())
    return log, model, optimizer


def a_teacher_that_cools():
    teacher, model, log = network().eval(), network(0.1), []
    optimizer, loader, heat = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches(), 4.0
    for epoch in range(6):
        heat = heat * 0.9 if epoch % 2 else heat
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            soft = F.softmax(teacher(x).detach() / heat, 1)
            out = model(x)
            loss = F.cross_entropy(out, y) + F.kl_div(F.log_softmax(out / heat, 1), soft, reduction="batchmean")
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        teacher.load_state_dict(model.state_dict())
    return log, model, optimizer


def averaged_weights_swapped_in():
    model, log = network(0.1), []
    average = copy.deepcopy(model).eval()
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True), batches()
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.mul_(0.9).add_(p, alpha=0.1)
            log.append(loss.item())
        own = [p.data for p in model.parameters()]
        for p, mean in zip(model.parameters(), average.parameters(), strict=True):
            p.data = mean.data
        model.eval()
        with torch.no_grad():
            log.append(sum(F.cross_entropy(model(x.to(device)), y.to(device)).item() for x, y in loader))
        model.train()
        for p, data in zip(model.parameters(), own, strict=True):
            p.data = data
    return log, model, optimizer


def mixed_images():
    model, log = network(0.1), []
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True), batches()
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            share = torch.rand((), device=device)
            order = torch.randperm(x.size(0), device=device)
            out = model(share * x + (1 - share) * x[order])
            loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def smoothing_that_fades():
    model, log, criterion = network(), [], nn.CrossEntropyLoss(label_smoothing=0.3)
    optimizer, loader = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches(96)
    for epoch in range(5):
        criterion.label_smoothing = 0.3 * (1 - epoch / 5)
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        log.append(total / len(loader))
    return log, model, optimizer


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.value = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.doubts = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        hidden = F.relu(self.body(x))
        return self.kind(hidden), self.value(hidden).mean(1)


def weights_of_tasks():
    model, log, weights = TwoTasks().to(device), [], {"kind": 1.0, "value": 0.1}
    optimizer, loader = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches(96)
    for epoch in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad(set_to_none=True)
            kind, value = model(x)
            first, second = weights["kind"] * F.cross_entropy(kind, y), weights["value"] * F.mse_loss(value, y.float())
            loss = first * torch.exp(-model.doubts[0]) + second * torch.exp(-model.doubts[1]) + model.doubts.sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.append((first.item(), second.item()))
        weights["value"] = 0.1 + 0.1 * epoch
    return log, model, optimizer


def layers_frozen_for_a_while():
    model, log = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, fused=True)
    loader = batches()
    for epoch in range(7):
        if epoch in (3, 5):
            model[0].requires_grad_(epoch == 5)
            model[1].train(epoch == 5)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_cosine_by_hand():
    model, log, step = network(0.2), [], 0
    optimizer, loader = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches()
    for _ in range(5):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.005 * (1 + math.cos(math.pi * step / 40)) * min(1.0, (step + 1) / 10)
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                log.append((step, loss.item()))
    return log, model, optimizer


def a_last_cycle_that_is_shorter():
    model, log, every = network(0.1), [], 4
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True), batches(83)
    for _ in range(5):
        optimizer.zero_grad()
        running = 0.0
        for number, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y) / every
            loss.backward()
            running += loss.item() * every
            if (number + 1) % every == 0 or number + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        log.append(running / len(loader))
    return log, model, optimizer


def one_cycle_logged_now_and_then():
    model, log = network(0.1), []
    optimizer, loader = torch.optim.Adam(model.parameters(), lr=0.01, fused=True), batches()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)
    running, right = 0.0, 0
    for _ in range(5):
        for number, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item()
            right += (out.argmax(1) == y).sum().item()
            if number % 4 == 3:
                log.append((running / 4, right, scheduler.get_last_lr()[0]))
                running = 0.0
    return log, model, optimizer


def steps_left_out():
    model, log, loader = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device), [], batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    loader.dataset.tensors[0][13] = float("nan")
    for _ in range(5):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if not torch.isfinite(loss):
                log.append("left out")
                continue
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer
