"""One process a device, and wrappers that only look like the one that is meant."""

import torch
from mylib import DataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(4, 1)
DistributedDataParallel(model, device_ids=[0])
torch.nn.parallel.DistributedDataParallel(model)
DataParallel(model)
isinstance(model, nn.DataParallel)
nn.DataParallel(model)  # hotlap: ignore[no-data-parallel]
