"""A loop that now and then asks for gradients of gradients. By itself: a file in which this happens is left alone."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batches():
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(64, 8, generator=generator), torch.randint(0, 8, (64,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)


def a_penalty_now_and_then():
    model, log, step = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 8)).to(device), [], 0
    optimizer, loader = torch.optim.Adam(model.parameters(), lr=0.01, fused=True), batches()
    for _ in range(4):
        for x, y in loader:
            x, y = x.to(device).requires_grad_(step % 8 == 7), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            if step % 8 == 7:
                (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                loss = loss + 0.1 * (grad.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            log.append(loss.item())
            step += 1
    return log, model, optimizer
