"""Tensors made in the right place, once, or in a way that another place would change."""

import torch
from mylib import images, loader, model, optimizer, target_type

device = torch.device("cuda")
generator = torch.Generator()

# once, not in every step
start = torch.zeros(8).to(device)



def train(epoch):
    # values that come from the host, and what is made now and then
    weights = torch.tensor([1.0, 2.0]).to(device)
    if epoch % 10 == 0:
        print(torch.zeros(8).to(device))
    for batch in loader:
        (model(batch) * weights).backward()
        optimizer.step()


def generate(tokens):
    for _ in range(20):
        tokens = model(tokens, torch.zeros(8).to(device))
    return tokens


for epoch in range(8):
    train(epoch)
generate(torch.LongTensor([1, 2]).to(device))

for batch in loader:
    # used on the host as well, or changed there
    mask = torch.ones(8)
    print(mask.sum(), mask.to(device))
    order = torch.zeros(8)
    order[batch] = 1
    order = order.to(device)
    # already there
    noise = torch.randn(8, device=device)
    # drawn from the host's generator, a leaf on the host, or written into a tensor of the host's
    torch.randn(8, generator=generator).to(device)
    torch.zeros(8, requires_grad=True).to(device)
    torch.zeros(8, out=start).to(device)
    # no device, or nobody knows
    torch.ones(8).to(torch.float16)
    torch.ones(8).to(target_type)
    torch.ones(8).to(images)
    torch.ones(8).to(device, torch.float16)
    torch.ones(8).cuda(non_blocking=True)
    # no factory
    batch = batch.to(device)
    torch.stack([batch, batch]).to(device)
    torch.zeros(8).add_(batch).to(device)
    ones = torch.ones(8).to(device)  # hotlap: ignore[device-born-tensors]
    model(batch).backward()
    optimizer.step()
