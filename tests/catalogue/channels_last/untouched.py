"""Networks without images, networks that never move, and moves that are not of a network."""

import torch
import torchvision
from torch import nn
from mymodels import ResNet


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Conv1d(8, 8, 3))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)


class Half(nn.Module):
    """Moves a part by itself: the rest would stay in the other layout."""

    def __init__(self, device):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).to(device)


class Options:
    """Not a network, though it can be moved."""

    def __init__(self):
        self.kind = nn.Conv2d

    def to(self, device):
        return self


def main(device, model):
    Words().to(device)
    words = Words()
    words.cuda()
    Options().to(device)
    ResNet().to(device)  # cannot be looked into from here
    model.to(device)  # a parameter
    torchvision.models.video.r3d_18().to(device)
    torchvision.models.vit_b_16().to(device)
    Images()  # never moved
    Images().to(torch.float16)  # not a move to a device
    batch = torch.randn(8, 3, 32, 32).to(device)
    return batch
