"""Train a small DCGAN on pictures of discs, rings and squares."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).resolve().parent
IMAGES = 1600
SIZE = 32


def make_images(root):
    """Write the pictures beside their final place and move them there in one go."""
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=root.name + ".", dir=root.parent))
    try:
        rng = np.random.default_rng(0)
        rows, cols = np.mgrid[0:SIZE, 0:SIZE]
        images = np.empty((IMAGES, 3, SIZE, SIZE), dtype=np.float32)
        for i in range(IMAGES):
            y, x, radius = rng.uniform(10, 22), rng.uniform(10, 22), rng.uniform(4, 9)
            distance = np.hypot(rows - y, cols - x)
            if i % 3 == 1:
                distance = np.abs(distance - radius * 0.7) + radius * 0.6
            elif i % 3 == 2:
                distance = np.maximum(np.abs(rows - y), np.abs(cols - x))
            shape = 1 / (1 + np.exp(2 * (distance - radius)))
            front, back = rng.uniform(0.2, 1.0, (3, 1, 1)), rng.uniform(-1.0, -0.4, (3, 1, 1))
            images[i] = shape * front + (1 - shape) * back
        torch.save(torch.from_numpy(images), unfinished / "images.pt")
        os.chmod(unfinished, 0o755)
        try:
            os.rename(unfinished, root)
        except OSError:
            if not root.is_dir():  # otherwise another run was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def save_grid(images, path, columns=8):
    images = images.cpu()
    images = images[: len(images) // columns * columns]
    grid = images.view(-1, columns, 3, SIZE, SIZE).permute(0, 3, 1, 4, 2).reshape(-1, columns * SIZE, 3)
    Image.fromarray(((grid + 1) * 127.5).clamp(0, 255).byte().numpy()).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "gan", help="folder with images.pt")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.0002)
    parser.add_argument("--nz", type=int, default=64, help="size of the latent vector")
    parser.add_argument("--ngf", type=int, default=32)
    parser.add_argument("--ndf", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="use only the first LIMIT pictures")
    parser.add_argument("--samples", type=Path, default=HERE / "data" / "gan-samples.png", help="grid to write")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    if not args.data.is_dir():
        print(f"making pictures in {args.data}")
        make_images(args.data)
    images = torch.load(args.data / "images.pt")[: args.limit]
    dataloader = DataLoader(TensorDataset(images), batch_size=args.batch_size, shuffle=True)

    netG = Generator(args.nz, args.ngf).to(device)
    netG.apply(weights_init)
    netD = Discriminator(args.ndf).to(device)
    netD.apply(weights_init)

    criterion = nn.BCELoss()
    fixed_noise = torch.randn(64, args.nz, 1, 1, device=device)
    real_label = 1.0
    fake_label = 0.0

    optimizerD = torch.optim.Adam(netD.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=args.lr, betas=(0.5, 0.999))

    for epoch in range(args.epochs):
        sum_D, sum_G = 0.0, 0.0
        for (real,) in dataloader:
            # Update D: maximize log(D(x)) + log(1 - D(G(z)))
            netD.zero_grad()
            real = real.to(device)
            batch_size = real.size(0)
            label = torch.full((batch_size,), real_label, dtype=real.dtype, device=device)
            output = netD(real)
            errD_real = criterion(output, label)
            errD_real.backward()

            noise = torch.randn(batch_size, args.nz, 1, 1, device=device)
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach())
            errD_fake = criterion(output, label)
            errD_fake.backward()
            errD = errD_real + errD_fake
            optimizerD.step()

            # Update G: maximize log(D(G(z)))
            netG.zero_grad()
            label.fill_(real_label)
            output = netD(fake)
            errG = criterion(output, label)
            errG.backward()
            optimizerG.step()

            sum_D += errD.item()
            sum_G += errG.item()
        n = len(dataloader)
        print(f"epoch {epoch + 1}/{args.epochs}  loss D {sum_D / n:.4f}  loss G {sum_G / n:.4f}")

    netG.eval()
    with torch.no_grad():
        save_grid(netG(fixed_noise), args.samples)


if __name__ == "__main__":
    main()
