"""Loaders that pin, that may, or whose batches go nowhere."""

import torch
from torch.utils.data import DataLoader
from mylib import DataLoader as OtherLoader, arguments, photos, settings

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# pinned, or chosen not to be
for batch in DataLoader(photos, pin_memory=True):
    batch = batch.to(device)
for batch in DataLoader(photos, pin_memory=False):
    batch = batch.to(device)
for batch in DataLoader(photos, 4, True, None, None, 0, None, True):
    batch = batch.to(device)
for batch in DataLoader(photos, pin_memory=arguments.pin):
    batch = batch.to(device)

# may be pinned
options = {"num_workers": 1, "pin_memory": True} if torch.cuda.is_available() else {}
for batch in DataLoader(photos, **options):
    batch = batch.to(device)
for batch in DataLoader(photos, **settings):
    batch = batch.to(device)
more = {"batch_size": 4}
if torch.cuda.is_available():
    more.update({"pin_memory": True})
for batch in DataLoader(photos, **more):
    batch = batch.cuda()

# not moved to a device, or not as it came
for batch in DataLoader(photos):
    batch = batch.to(torch.float32)
for batch in DataLoader(photos):
    batch = batch.to("cpu")
for batch in DataLoader(photos):
    batch = batch.float()
    batch = batch.to(device)
for batch in DataLoader(photos):
    print(torch.zeros(3).to(device))
host = torch.device("cpu")
for batch in DataLoader(photos):
    batch = batch.to(host)

# nothing known
for batch in OtherLoader(photos):
    batch = batch.to(device)


def train(loader):
    for batch in loader:
        batch.to(device)


def loader_of(dataset):
    return DataLoader(dataset)


pinned = torch.zeros(3).pin_memory()
pinned.to(device)
torch.zeros(3).pin_memory().to("cpu")
for batch in DataLoader(photos):  # hotlap: ignore[pinned-batches]
    batch = batch.to(device)
