"""Batches of a nested kind, made by workers, moved to the device leaf by leaf."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Waves(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(64) * (index + 1) / 16)
        return {"wave": wave, "about": (index % 4, str(index))}


torch.manual_seed(0)
loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=2)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in loader:
        kind, names = batch["about"]
        loss = nn.functional.cross_entropy(model(batch["wave"].to(device)), kind.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
