"""Train a convolutional GAN on pictures of 64x64 that already lie on the device."""

import argparse

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        layers, channels = [nn.ConvTranspose2d(noise, 8 * width, 4, 1, 0, bias=False)], 8 * width
        for wider in (4, 2, 1):
            layers += [nn.BatchNorm2d(channels), nn.ReLU(True)]
            layers.append(nn.ConvTranspose2d(channels, wider * width, 4, 2, 1, bias=False))
            channels = wider * width
        layers += [nn.BatchNorm2d(channels), nn.ReLU(True), nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, noise):
        return self.layers(noise)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, channels = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)], width
        for wider in (2, 4, 8):
            layers.append(nn.Conv2d(channels, wider * width, 4, 2, 1, bias=False))
            channels = wider * width
            layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.2, True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, 1, 0, bias=False))

    def forward(self, images):
        return self.layers(images).view(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--noise", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="narrower networks and fewer pictures")
    args = parser.parse_args()
    if args.small:
        args.batch_size, args.noise, args.width = 8, 16, 8

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    generator = Generator(args.noise, args.width).to(device)
    discriminator = Discriminator(args.width).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    pictures = torch.rand(8 * args.batch_size, 3, 64, 64, device=device) * 2 - 1
    real = torch.ones(args.batch_size, device=device)
    fake = torch.zeros(args.batch_size, device=device)

    for step in range(args.steps):
        first = step % 8 * args.batch_size
        images = pictures[first : first + args.batch_size]
        noise = torch.randn(args.batch_size, args.noise, 1, 1, device=device)

        optimizer_d.zero_grad()
        made = generator(noise)
        loss_d = criterion(discriminator(images), real) + criterion(discriminator(made.detach()), fake)
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(made), real)
        loss_g.backward()
        optimizer_g.step()

        if step % 100 == 0:
            print(f"step {step}: discriminator {loss_d.item():.4f}, generator {loss_g.item():.4f}")


if __name__ == "__main__":
    main()
