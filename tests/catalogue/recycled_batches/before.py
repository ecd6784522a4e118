"""Two workers make batches that are large beside what is computed from them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        frequency = index % 8 + 1
        wave = torch.sin(6.2832 * frequency * torch.linspace(0, 1, 2048))
        return wave, torch.tensor(frequency - 1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(2048, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for waves, kinds in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(waves), kinds)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
