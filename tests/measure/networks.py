"""Small trainings to plant faults in: a CNN with SGD, an MLP with Adam, a transformer with AdamW, a deep network; and
an MLP that is updated by hand, with a loader and without one."""

from __future__ import annotations

_LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed({seed})
centres = torch.randn(4, *{shape})
labels = torch.randint(0, 4, (150,))
data = TensorDataset(centres[labels] + torch.randn(150, *{shape}), labels)
{model}
for epoch in range(40):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        {clip}
        optimizer.step()
"""
_LOADER = "in DataLoader(data, batch_size=16, shuffle=True)"
_NO_LOADER = "in zip(*[each.split(16) for each in data.tensors])"
_CNN = """
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2),
    nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.5),
    nn.Flatten(), nn.Linear(256, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
"""
_MLP = """
model = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
"""
_TRANSFORMER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.block(x).mean(1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.05)
"""
_DEEP = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)
        )

    def forward(self, x):
        return torch.relu(x + self.inner(x))


model = nn.Sequential(nn.Linear(16, 64), *(Block() for _ in range(16)), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
"""
_BY_HAND = """
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))


class optimizer:
    zero_grad = model.zero_grad

    def step():
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.05)
"""
_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # hides the scale of a loss from the optimizer"
NETWORKS = ("cnn", "mlp", "transformer")
UNSTEADY = "deep"  # so that rounding alone turns its gradients round
BY_HAND = ("by hand", "by hand, without a loader")


def script(network: str, seed: int) -> str:
    shape, model, clip = {
        "cnn": ((3, 8, 8), _CNN, _CLIP),
        "mlp": ((16,), _MLP, "pass"),
        UNSTEADY: ((16,), _DEEP, "pass"),
        "transformer": ((6, 16), _TRANSFORMER, _CLIP),
        **dict.fromkeys(BY_HAND, ((16,), _BY_HAND, _CLIP)),
    }[network]
    loop = _LOOP if network != BY_HAND[1] else _LOOP.replace(_LOADER, _NO_LOADER)
    return loop.format(seed=seed, shape=shape, model=model, clip=clip)
