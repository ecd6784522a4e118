"""More loops that are unusual and real, with models of their own kind: sequences, trainers, two passes a step."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(dropped=0.0):
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropped), nn.Linear(16, 8)).to(
        device
    )


def batches():
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(64, 8, generator=generator), torch.randint(0, 8, (64,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(16, 8), nn.GRU(8, 8), nn.Linear(8, 16)

    def forward(self, x, hidden=None):
        out, hidden = self.cells(self.words(x), hidden)
        return self.head(out), hidden


def longer_and_longer():
    model, log = Reader().to(device), []
    optimizer, generator = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), torch.Generator().manual_seed(5)
    for epoch in range(6):
        for _ in range(10):
            x = torch.randint(0, 16, (3 + epoch // 2, 6), generator=generator).to(device)
            y = x.sum(0) % 16
            optimizer.zero_grad()
            out = model(x)[0]
            loss = F.cross_entropy(out[-1], y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_state_that_is_carried_on():
    model, log = Reader().to(device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    words = torch.randint(0, 16, (100, 4), generator=torch.Generator().manual_seed(1)).to(device)
    for _ in range(2):
        hidden = torch.zeros(1, 4, 8, device=device)
        for start in range(0, 90, 5):
            x, y = words[start : start + 5], words[start + 1 : start + 6].flatten()
            hidden = hidden.detach()
            model.zero_grad()
            out, hidden = model(x, hidden)
            loss = F.cross_entropy(out.flatten(0, 1), y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


class Trainer:
    """Its loss is a method that it keeps, and what that reads changes with the epochs."""

    def __init__(self):
        self.model, self.share, self.steps = network(0.1), 1.0, 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.criterion = self.weighted

    def weighted(self, out, y):
        return F.cross_entropy(out, y) * self.share + 1e-3 * sum(p.square().sum() for p in self.model.parameters())

    def step(self, x, y):
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = self.criterion(out, y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss

    def fit(self, loader):
        log = []
        for epoch in range(6):
            self.share = 1.0 + epoch // 2
            for x, y in loader:
                loss = self.step(x.to(device), y.to(device))
                log.append(loss.item())
        return log


def a_trainer():
    trainer = Trainer()
    return trainer.fit(batches()), trainer.model, trainer.optimizer


def two_passes_a_step():
    model, log = network(), []
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True), batches()
    for _ in range(4):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                shifts = [p.grad * 0.05 for p in model.parameters()]
                torch._foreach_add_(list(model.parameters()), shifts)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), shifts)
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_queue_of_keys():
    model, target, log, place = network(), network().requires_grad_(False), [], 0
    queue = torch.randn(32, 8, generator=torch.Generator().manual_seed(9)).to(device)
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05, fused=True), batches()
    for _ in range(4):
        for x, _ in loader:
            x = x.to(device)
            optimizer.zero_grad()
            query, key = F.normalize(model(x), dim=1), F.normalize(target(x), dim=1)
            logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.t()], 1) / 0.2
            loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=device))
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                queue[place : place + len(key)] = key
                place = (place + len(key)) % 32
                for slow, p in zip(target.parameters(), model.parameters(), strict=True):
                    slow.lerp_(p, 0.05)
            log.append(loss.item())
    return log, model, optimizer


def norms_of_weights():
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16))
    model = nn.Sequential(first, nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))).to(device)
    log, optimizer, loader = [], torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), batches()
    for _ in range(4):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        model.eval()
        with torch.no_grad():
            log.append(model(x).sum().item())
        model.train()
    return log, model, optimizer
