"""Training loops that ask for gradients of gradients within a pass, or beside one. Each gives its log, model and
optimizer."""

import torch
from strange_loops import batches, device
from torch import nn


def maker_and_judge():
    maker = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 8)).to(device)
    judge = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1)).to(device)
    return maker, judge


def optimizers(*models):
    return [torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.9), fused=True) for model in models]


def steepness(judge, real, fake):
    share = torch.rand(real.size(0), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    said = judge(between)
    (slope,) = torch.autograd.grad(said, between, torch.ones_like(said), create_graph=True, retain_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def a_judge_that_must_not_be_steep():
    (maker, judge), log = maker_and_judge(), []
    for_maker, for_judge = optimizers(maker, judge)
    for _ in range(5):
        for number, (real, _) in enumerate(batches()):
            real = real.to(device)
            for_judge.zero_grad()
            noise = torch.randn(8, 4, device=device)
            fake = maker(noise).detach()
            lost = judge(fake).mean() - judge(real).mean() + 10 * steepness(judge, real, fake)
            lost.backward()
            for_judge.step()
            log.append(lost.item())
            if number % 2 == 0:
                for_maker.zero_grad()
                made = maker(noise)
                wrong = -judge(made).mean()
                wrong.backward()
                for_maker.step()
                log.append(wrong.item())
    return log, nn.ModuleList([maker, judge]), for_maker


def a_slope_within_the_pass():
    (_, judge), log = maker_and_judge(), []
    (optimizer,) = optimizers(judge)
    for _ in range(5):
        for x, _ in batches():
            x = x.to(device)
            optimizer.zero_grad()
            said = judge(x).mean()
            slopes = torch.autograd.grad(said, list(judge.parameters()), create_graph=True)
            loss = said + 0.1 * sum(one.square().sum() for one in slopes)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, judge, optimizer


def a_slope_after_the_pass():
    (_, judge), log = maker_and_judge(), []
    (optimizer,) = optimizers(judge)
    for _ in range(5):
        for x, _ in batches():
            x = x.to(device)
            optimizer.zero_grad()
            said = judge(x)
            loss = said.square().mean()
            loss.backward(retain_graph=True)
            (slope,) = torch.autograd.grad(said.sum(), judge[0].weight)
            optimizer.step()
            log.append(loss.item() + slope.sum().item())
    return log, judge, optimizer
