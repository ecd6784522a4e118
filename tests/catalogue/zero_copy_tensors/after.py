"""Arrays copied into tensors although nobody else needs them."""

import numpy as np
import torch
from torch import nn, tensor


def make_data():
    random = np.random.RandomState(0)
    np.random.seed(0)
    inputs = np.random.randn(64, 8).astype(np.float32)
    labels = (inputs.sum(axis=1) > 0).astype(np.int64) + random.randint(1)
    print(f"{len(inputs)} samples of {inputs.shape[1]}")
    return torch.as_tensor(inputs), torch.as_tensor(np.array(labels), dtype=torch.int64)


def main():
    torch.manual_seed(0)
    inputs, labels = make_data()
    weights = torch.as_tensor(np.ones(2, dtype=np.float32))
    scale = torch.as_tensor(np.linspace(1, 2, 8).astype("float32") / 2)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs * scale), labels, weight=weights).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
