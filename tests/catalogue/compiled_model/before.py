"""A network with long chains of small operations, as compiling likes them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x):
        value, gate = self.mix(self.norm(x)).chunk(2, dim=-1)
        return x + torch.tanh(value) * torch.sigmoid(gate)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = torch.randn(256, 32)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1) > 0), batch_size=16)
    model = nn.Sequential(Gated(32), Gated(32), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.long().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
