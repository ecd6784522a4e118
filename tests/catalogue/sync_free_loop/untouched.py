"""Values read now and then, read once, read on the host, or needed at once."""

import torch
from torch import nn
from mylib import dictionary, loader, model, optimizer, test_loader

device = torch.device("cuda")
model = model.to(device)
total = torch.zeros((), device=device)
kept = []

for step, (inputs, labels) in enumerate(loader):
    lengths = labels.tolist()  # still on the host
    answers = model(inputs.to(device))
    loss = nn.functional.cross_entropy(answers, labels.to(device))
    loss.backward()
    optimizer.step()
    total += loss.detach()
    rows = answers.shape[0] + answers.size(1) + int(answers.numel())
    if loss is None or rows > 3:
        continue
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", loss.tolist())
    elif step == 7:
        kept.append(answers.cpu().numpy())
    shown = loss.item() if step % 10 == 0 else None
    print(step, rows)
    torch.save(model.state_dict(), "model.pt")

    def later():
        return loss.item()

    loss.item()  # hotlap: ignore[sync-free-loop]

print(total.item() / len(loader))

# outputs gathered on the host, and a text made word by word
with torch.no_grad():
    for inputs, labels in test_loader:
        kept.append(model(inputs.to(device)).cpu())
        kept += model(inputs.to(device)).tolist()
    for _ in range(20):
        word = model(inputs).argmax().item()
        print(dictionary[word])

# no model's result
for name, value in model.state_dict().items():
    print(name, value.sum().item())


def validate(inputs):
    return model(inputs).mean().item()


# now and then, or once
for step, (inputs, labels) in enumerate(loader):
    labels.tolist()
    labels = labels.to(device)
    model(inputs.to(device)).mean().backward()
    optimizer.step()
    if step % 100 == 0:
        print(validate(inputs))
    if model.is_checked:
        assert labels.max() < 10
validate(inputs)
