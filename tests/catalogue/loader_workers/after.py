"""A data set that makes every sample anew, read by the training process itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time = torch.linspace(0, 1, 64)
        frequency = index % 8 + 1
        return torch.sin(6.2832 * frequency * time), torch.tensor(frequency - 1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Waves(192), batch_size=16, shuffle=True, num_workers=4)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(1):
        for waves, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(waves), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
