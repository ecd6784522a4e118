"""Copies that must wait, that cannot do otherwise, or of which nothing is known."""

import torch
from torch.utils.data import DataLoader
from mylib import arguments, model, photos, settings

device = torch.device("cuda")
pinned = DataLoader(photos, pin_memory=True)

# already so, or chosen
for images, labels in pinned:
    images = images.to(device, non_blocking=True)
    labels = labels.cuda(0, True)
    labels = labels.to(device, torch.int64, True)
    images = images.to(device, **settings)

# not from pinned memory
for images in DataLoader(photos):
    images = images.to(device)
for images in DataLoader(photos, pin_memory=False):
    images = images.to(device)
for images in DataLoader(photos, pin_memory=arguments.pin):
    images = images.to(device)
for images in pinned:
    images = images.float()
    images = images.to(device)
for images in pinned:
    images.float().to(device)

# from the device to the host: wrong data without a wait
for images in pinned:
    out = model(images)
    out.to("cpu")
    images.to("cpu")
    model(images).cpu()

# still read by the copy when it is written to
for images in pinned:
    moved = images.to(device)
    images.mul_(2)
for images in pinned:
    moved = images.cuda()
    images[0] = 0

# not a copy to a device
for images in pinned:
    images = images.to(torch.float16)
    images = images.to(dtype=torch.float16)


def train(loader):
    for images in loader:
        images = images.to(device)


for images in pinned:
    images = images.to(device)  # hotlap: ignore[async-copies]
