"""Lists, arrays that are written to, types that must be converted, and what cannot be known."""

import numpy as np
import torch
from mylib import load

# lists and numbers have no memory to share
torch.tensor([1, 2, 3])
torch.tensor(3.0)
values = [float(i) for i in range(4)]
torch.tensor(values)
torch.FloatTensor(values)
torch.tensor(np.random.rand())
torch.Tensor(3, 4)

# already without a copy
torch.from_numpy(np.zeros(3))
torch.as_tensor(np.zeros(3))

# written to afterwards, handed on, or used again in a loop
frame = np.zeros((4, 4))
first = torch.tensor(frame)
frame[0] = 1
state = np.zeros(4)
second = torch.tensor(state)
state += 1
kept = np.zeros(4)
third = torch.tensor(kept)
load(kept)
table = np.zeros((4, 4))
for _ in range(4):
    torch.tensor(table)
board = np.zeros((4, 4))
for row in range(4):
    tile = torch.tensor(board[row:])
    board[row] = 1

# must be converted, and so copied
torch.FloatTensor(np.zeros(3))
torch.FloatTensor(np.zeros(3).astype(np.int32))
torch.LongTensor(np.arange(3))

# a leaf, pinned, or nobody knows
torch.tensor(np.zeros(3), requires_grad=True)
torch.tensor(np.zeros(3), pin_memory=True)
torch.tensor(load("x"))
torch.tensor(np.zeros(3)[0])


def convert(array):
    return torch.tensor(array)


torch.tensor(np.zeros(3))  # hotlap: ignore[zero-copy-tensors]
