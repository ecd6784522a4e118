"""Loops with more than one pass a step, or none in some, and passes whose way Python decides, as scripts write them.
Each gives its log, what it trains and an optimizer."""

import types

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pair():
    maker = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1)).to(device)
    return maker, judge


def batches(samples=64):
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(samples, 8, generator=generator), torch.randint(0, 8, (samples,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)


def a_maker_and_its_judge():
    (generator, discriminator), log = pair(), []
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.01, fused=True)
    optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.01, fused=True)
    adversarial_loss = nn.BCEWithLogitsLoss()
    for _ in range(6):
        for imgs, _y in batches():
            valid = torch.ones(imgs.size(0), 1, device=device)
            fake = torch.zeros(imgs.size(0), 1, device=device)
            real_imgs = imgs.to(device)

            optimizer_G.zero_grad()
            z = torch.randn(imgs.shape[0], 8).to(device)
            gen_imgs = generator(z)
            g_loss = adversarial_loss(discriminator(gen_imgs), valid)
            g_loss.backward()
            optimizer_G.step()

            optimizer_D.zero_grad()
            real_loss = adversarial_loss(discriminator(real_imgs), valid)
            fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
            d_loss = (real_loss + fake_loss) / 2
            d_loss.backward()
            optimizer_D.step()
            log.append((d_loss.item(), g_loss.item(), gen_imgs.data.mean().item()))
    return log, nn.ModuleList([generator, discriminator]), optimizer_G


def a_judge_and_then_its_maker():
    (netG, netD), log = pair(), []
    criterion, real_label, fake_label = nn.BCEWithLogitsLoss(), 1.0, 0.0
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01, fused=True)
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01, fused=True)
    for _ in range(6):
        for data in batches():
            netD.zero_grad()
            real_cpu = data[0].to(device)
            batch_size = real_cpu.size(0)
            label = torch.full((batch_size, 1), real_label, dtype=real_cpu.dtype, device=device)
            output = netD(real_cpu)
            errD_real = criterion(output, label)
            errD_real.backward()
            D_x = output.mean().item()
            noise = torch.randn(batch_size, 8, device=device)
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach())
            errD_fake = criterion(output, label)
            errD_fake.backward()
            D_G_z1 = output.mean().item()
            errD = errD_real + errD_fake
            optimizerD.step()
            netG.zero_grad()
            label.fill_(real_label)
            output = netD(fake)
            errG = criterion(output, label)
            errG.backward()
            D_G_z2 = output.mean().item()
            optimizerG.step()
            log.append((errD.item(), errG.item(), D_x, D_G_z1, D_G_z2))
    return log, nn.ModuleList([netG, netD]), optimizerG


def judges_of_two_makers():
    (G_AB, D_B), (G_BA, D_A), log = pair(), pair(), []
    makers = nn.ModuleList([G_AB, G_BA])
    optimizer_G = torch.optim.Adam(makers.parameters(), lr=0.01, fused=True)
    optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=0.01, fused=True)
    optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=0.01, fused=True)
    for _ in range(6):
        for images, _y in batches():
            real_A = images.to(device)
            real_B = real_A.flip(1) * 2
            G_AB.train()
            G_BA.train()
            optimizer_G.zero_grad()
            fake_B = G_AB(real_A)
            fake_A = G_BA(real_B)
            loss_GAN = (F.softplus(-D_B(fake_B)).mean() + F.softplus(-D_A(fake_A)).mean()) / 2
            loss_cycle = F.l1_loss(G_BA(fake_B), real_A) + F.l1_loss(G_AB(fake_A), real_B)
            loss_G = loss_GAN + 10 * loss_cycle
            loss_G.backward()
            optimizer_G.step()

            optimizer_D_A.zero_grad()
            loss_real = F.softplus(-D_A(real_A)).mean()
            loss_fake = F.softplus(D_A(fake_A.detach())).mean()
            loss_D_A = (loss_real + loss_fake) / 2
            loss_D_A.backward()
            optimizer_D_A.step()

            optimizer_D_B.zero_grad()
            loss_real = F.softplus(-D_B(real_B)).mean()
            loss_fake = F.softplus(D_B(fake_B.detach())).mean()
            loss_D_B = (loss_real + loss_fake) / 2
            loss_D_B.backward()
            optimizer_D_B.step()
            log.append((loss_G.item(), (loss_D_A + loss_D_B).item(), loss_cycle.item()))
    return log, nn.ModuleList([makers, D_A, D_B]), optimizer_G


def a_maker_now_and_then():
    (generator, discriminator), log = pair(), []
    optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=0.005)
    optimizer_D = torch.optim.RMSprop(discriminator.parameters(), lr=0.005)
    for _ in range(12):
        for i, (imgs, _y) in enumerate(batches()):
            real_imgs = imgs.to(device)
            optimizer_D.zero_grad()
            z = torch.randn(imgs.shape[0], 8, device=device)
            fake_imgs = generator(z).detach()
            loss_D = -torch.mean(discriminator(real_imgs)) + torch.mean(discriminator(fake_imgs))
            loss_D.backward()
            optimizer_D.step()
            for p in discriminator.parameters():
                p.data.clamp_(-0.1, 0.1)
            if i % 3 == 0:
                optimizer_G.zero_grad()
                gen_imgs = generator(z)
                loss_G = -torch.mean(discriminator(gen_imgs))
                loss_G.backward()
                optimizer_G.step()
                log.append(loss_G.item())
            log.append(loss_D.item())
    return log, nn.ModuleList([generator, discriminator]), optimizer_G


def four_passes_to_an_update():
    (model, _), log, accumulation_steps = pair(), [], 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for _ in range(10):
        for step, (x, y) in enumerate(batches(72)):
            loss = F.cross_entropy(model(x.to(device)), y.to(device)) / accumulation_steps
            loss.backward()
            log.append(loss.item())
            if (step + 1) % accumulation_steps == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return log, model, optimizer


def gradients_set_to_zero():
    (model, _), log = pair(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(6):
        for x, y in batches():
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def a_way_that_the_settings_decide():
    (model, _), log = pair(), []
    args = types.SimpleNamespace(classes=8, smooth=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(9):
        args.smooth = 0.0 if epoch < 3 else 0.1
        args.classes = 8 if epoch < 6 else 1
        for x, y in batches():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            if args.classes == 1:
                loss = F.mse_loss(out[:, 0], y.float())
                loss += out.square().mean()
            else:
                loss = F.cross_entropy(out, y, label_smoothing=args.smooth if args.smooth > 0 else 0.0)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def what_is_given_as_a_whole():
    (model, judge), log = pair(), []
    parameters = [*model.parameters(), *judge.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)

    def reset_grad():
        optimizer.zero_grad()

    for _ in range(6):
        for x, _y in batches():
            inputs = (x.to(device),)
            loss = F.softplus(judge(model(*inputs))).mean()
            reset_grad()
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, nn.ModuleList([model, judge]), optimizer


def what_is_shown_before_it_goes_back():
    (model, _), log, losses, epoch_loss = pair(), [], [], 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(6):
        total, right = 0.0, 0
        for number, (x, y) in enumerate(batches()):
            input, target = x.to(device), y.to(device)
            optimizer.zero_grad()
            output = model(input)
            loss = F.cross_entropy(output, target)
            epoch_loss += loss.item()
            total += loss.item() * len(input)
            right += (output.argmax(1) == target).sum().item()
            if number % 3 == 0:
                losses.append(f"{loss:.4f} of {total / (number + 1):.4f}")
            loss.backward()
            optimizer.step()
        log.append((epoch, total, right, epoch_loss, tuple(losses)))
    return log, model, optimizer


def a_judge_that_is_frozen_for_its_maker():
    (maker, judge), log = pair(), []
    for_maker = torch.optim.SGD(maker.parameters(), lr=0.05)
    for_judge = torch.optim.SGD(judge.parameters(), lr=0.05)
    for _ in range(6):
        for x, _y in batches():
            x = x.to(device)
            judge.requires_grad_(False)
            maker.zero_grad()
            judge.zero_grad()
            made = maker(x)
            fooled = F.softplus(-judge(made)).mean()
            fooled.backward()
            for_maker.step()
            judge.requires_grad_(True)
            told = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
            told.backward()
            for_judge.step()
            log.append((fooled.item(), told.item()))
    return log, nn.ModuleList([maker, judge]), for_judge


def a_head_that_works_in_place():
    (body, _), log = pair(), []
    head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    for _ in range(6):
        for x, y in batches():
            optimizer.zero_grad()
            features = body(x.to(device))
            assert features.dim() == 2
            loss = F.cross_entropy(head(features), y.to(device))
            loss.backward()
            optimizer.step()
            log.append(loss.item())
    return log, nn.ModuleList([body, head]), optimizer


def gradients_that_are_centred():
    (model, _), log = pair(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        for x, y in batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            for p in model.parameters():
                if p.dim() > 1:
                    p.grad.data = p.grad.data - p.grad.data.mean(dim=1, keepdim=True)
            optimizer.step()
            log.append(loss.item())
    return log, model, optimizer


def told(out, y, parts):
    parts["loss"] = F.cross_entropy(out, y).detach()
    return F.cross_entropy(out, y)


def what_is_put_into_what_was_given():
    (model, _), log = pair(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        for x, y in batches():
            parts = {}
            optimizer.zero_grad()
            loss = told(model(x.to(device)), y.to(device), parts)
            loss.backward()
            optimizer.step()
            log.append((loss.item(), parts["loss"].item()))
    return log, model, optimizer
