"""Gradients that are dropped, that are not the optimizer's business, or that must stay tensors."""

import torch
from torch import nn

model, critic = nn.Linear(4, 1), nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
critic_optimizer = torch.optim.Adam(critic.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=False)
keep = bool(optimizer.param_groups)

for step in range(10):
    optimizer.zero_grad()
    optimizer.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=keep)
    loss = critic(model(torch.randn(8, 4))).mean()
    loss.backward()
    critic.zero_grad()  # the critic only judged: its gradients are not wanted
    critic_optimizer.zero_grad()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    for p in model.parameters():
        if keep:
            p.grad.zero_()
        else:
            p.grad = None
    for buffer in model.buffers():
        buffer.zero_()

# cleared before backward, though after another one
for step in range(10):
    critic(model(torch.randn(8, 4))).mean().backward()
    critic_optimizer.step()
    optimizer.zero_grad()
    critic(model(torch.randn(8, 4))).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def closure():
    loss = model(torch.randn(8, 4)).mean()
    loss.backward()
    return loss


lbfgs = torch.optim.LBFGS(model.parameters())
model(torch.randn(8, 4)).mean().backward()
lbfgs.zero_grad()
lbfgs.step(closure)
