"""Training loops whose passes go round in loops of their own, or stand in one. Each gives its log, model and optimizer;
what each changes on the way, a graph would not notice."""

import torch
from strange_loops import batches, device
from torch import nn
from torch.nn import functional as F


class Exits(nn.Module):
    """Three layers, and what is guessed after each of them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.is_open = [True, True, False]

    def forward(self, x):
        found = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x).relu()
            found.append(head(x))
        return found


def made(model):
    return model.to(device), torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), []


def step_by_step(model, optimizer, x, y):
    hidden = torch.zeros(len(x), 8, device=device)
    optimizer.zero_grad()
    for place in range(x.size(1)):
        out = model(x[:, place : place + 1], hidden)
        hidden = torch.tanh(out)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    return out, loss.item()


def a_cell_that_goes_along_a_row():
    model, optimizer, log = made(nn.RNNCell(1, 8))
    for _ in range(5):
        for x, y in batches():
            out, loss = step_by_step(model, optimizer, x.to(device), y.to(device))
            log += [loss, out.argmax(1).sum().item()]
    return log, model, optimizer


def a_state_that_goes_on():
    model, optimizer, log = made(nn.GRUCell(2, 8))
    for _ in range(5):
        hidden = torch.zeros(8, 8, device=device)
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            hidden = hidden.detach()
            optimizer.zero_grad()
            loss = 0
            for place in range(0, 8, 2):
                hidden = model(x[:, place : place + 2], hidden)
                loss += F.cross_entropy(hidden, y)
            loss.backward()
            optimizer.step()
            log.append(loss.item() / 4)
        log.append(hidden.sum().item())
    return log, model, optimizer


def every_exit_learns():
    model, optimizer, log = made(Exits())
    for _ in range(5):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            found = model(x)
            loss = sum(F.cross_entropy(one, y) for one in found)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def exits_that_are_opened():
    model, optimizer, log = made(Exits())
    for epoch in range(5):
        model.is_open[2] = epoch > 2
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            losses = [F.cross_entropy(one, y) for one, is_open in zip(model(x), model.is_open, strict=True) if is_open]
            torch.stack(losses).sum().backward()
            optimizer.step()
        log.append(torch.stack(losses).sum().item())
    return log, model, optimizer


def weights_in_a_list():
    model, optimizer, log = made(Exits())
    weights = [0.2, 0.3, 0.5]
    for epoch in range(8):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            loss = torch.zeros((), device=device)
            optimizer.zero_grad()
            for number, (weight, one) in enumerate(zip(weights, model(x), strict=True)):
                if number or epoch % 2:
                    loss = loss + weight * F.cross_entropy(one, y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        weights[0] += 0.1
    return log, model, optimizer


def weights_that_are_kept_small():
    model, optimizer, log = made(nn.Linear(8, 8))
    for _ in range(5):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            for weight in model.parameters():
                loss = loss + 0.01 * weight.square().sum()
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def rounds_that_become_more():
    model, optimizer, log = made(nn.Linear(8, 8))
    for epoch in range(6):
        rounds = 1 + epoch // 3
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            for _ in range(rounds):
                x = model(x)
            loss = F.cross_entropy(x, y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def parts_of_a_batch():
    model, optimizer, log = made(nn.Linear(8, 8))
    for _ in range(5):
        for x, y in batches():
            total = 0.0
            optimizer.zero_grad(set_to_none=False)
            for some, theirs in zip(x.to(device).chunk(4), y.to(device).chunk(4), strict=True):
                loss = F.cross_entropy(model(some), theirs) / 4
                loss.backward()
                total += loss.item()
            optimizer.step()
            log.append(total)
    return log, model, optimizer


def several_updates_a_batch():
    model, optimizer, log = made(nn.Linear(8, 8))
    for _ in range(3):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            for round in range(3):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x + 0.1 * round), y)
                loss.backward()
                optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def what_comes_from_elsewhere_in_rounds():
    model, optimizer, log = made(nn.Linear(8, 8))
    drawn = (number / 500 for number in range(10**6))
    for _ in range(5):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            for number, _ in zip(drawn, range(2), strict=False):
                loss = loss * (1 + number)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_row_that_grows():
    model, optimizer, log = made(nn.Linear(8, 8))
    past = [torch.zeros(8, device=device)]
    for _ in range(8):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            for one in past:
                loss = loss + 0.01 * (model.weight[0] - one).square().sum()
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        past.append(model.weight[0].detach().clone())
    return log, model, optimizer


def names_that_are_used_twice():
    model, optimizer, log = made(Exits())
    one = 0
    for _ in range(5):
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            one += 1
            optimizer.zero_grad()
            loss = torch.stack([F.cross_entropy(one, y) for one in model(x)]).mean()
            loss.backward()
            optimizer.step()
            log.append(loss.item() + one)
    return log, model, optimizer


def of_one_kind(has_state):
    model, optimizer, log = made(nn.GRUCell(8, 8) if has_state else nn.Linear(8, 8))
    for _ in range(5):
        if has_state:
            state = torch.zeros(8, 8, device=device)
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            if has_state:
                state = state.detach()
                state = model(x, state)
                out = state * 2
            else:
                out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_kind_with_a_state():
    return of_one_kind(True)


def a_kind_without_a_state():
    return of_one_kind(False)
