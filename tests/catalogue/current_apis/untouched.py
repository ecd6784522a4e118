"""Today's calls, and what only looks like yesterday's."""

import torch
import torch.nn.functional as F
from mylib import Variable, clip_grad_norm
from torch import nn
from torch.amp import GradScaler, autocast

model = nn.Linear(4, 1)
with torch.amp.autocast("cuda", enabled=False), autocast("cpu"), torch.autocast("cuda", dtype=torch.bfloat16):
    pass
GradScaler("cuda", enabled=False)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
clip_grad_norm(model.parameters(), 1.0)
Variable(torch.zeros(1))
nn.MSELoss(reduction="sum")
torch.sigmoid(torch.zeros(1)), torch.tanh(torch.zeros(1)), F.sigmoid(torch.zeros(1))
rows = torch.zeros(3, 4)
print(rows.data[0], rows.amax(dim=0), torch.scatter_reduce)
reduce(print, [1], size_average=True)

scripted = torch.jit.script(model)
scripted.save("model.pt")
