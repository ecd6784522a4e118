"""Small models whose passes are started kernel by kernel: in a function, in a trainer, in a function for one step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from hotlap.parts.recorded_pass import read_early, reading_early, recorded


class Trainer:
    def __init__(self, model, device):
        self.model, self.device = model, device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(self, loader):
        model, draws = self.model, iter(loader)
        model.train()
        while True:
            try:
                batch = next(draws)
            except StopIteration:
                break
            x, y = [one.to(self.device) for one in batch]

            # forward the model
            def one_pass(x, y):
                logits = model(x)
                self.loss = F.cross_entropy(logits, y)

                # and back
                model.zero_grad(set_to_none=True)
                self.loss.backward()  # the loss is shown below
                return self.loss
            self.loss = recorded(one_pass, x, y)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
        print(f"{self.loss.item():.4f}")


def train(model, loader, optimizer, device, criterion):
    model.train()
    right = 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        def one_pass(data, target):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=False):
                output = model(data)
                loss = criterion(output, target)
            loss.backward()
            return output, loss
        output, loss = recorded(one_pass, data, target)
        optimizer.step()
        right += (output.argmax(dim=1) == target).sum()
    print(f"{loss.item():.4f}", int(right))


def shown(model, loader, optimizer, device, criterion):
    """What every step shows is read in every step."""
    total, right, losses = 0.0, 0, []
    for number, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        def one_pass(data, target):
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            return output, loss
        output, loss = recorded(one_pass, data, target)
        optimizer.step()

        with reading_early(one_pass, total, loss, output, right, target):
            total += loss.item()  # added up
            _, best = output.max(1)
            right += best.eq(target).sum().item()

        losses.append(read_early(one_pass, loss))
        print(f"{number}: {total / (number + 1):.4f}", right, losses[-1])


def shown_before(model, loader, optimizer, device, criterion):
    """What every step shows is read before it goes back."""
    total, scores = 0.0, []
    for number, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        def one_pass(data, target):
            output = model(data)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()  # and back
            return output, loss
        output, loss = recorded(one_pass, data, target)
        with reading_early(one_pass, total, loss):
            total += loss.item()
        if number % 4 == 0:
            print(f"{number}: {total / (number + 1):.4f}", "%.4f" % read_early(one_pass, loss))
        scores.append((output.argmax(1) == target).float().mean().item())

        optimizer.step()
    print(sum(scores))


def adversaries(maker, judge, loader, device):
    """Two networks in turns, and one of them only every other time."""
    for_maker = torch.optim.SGD(maker.parameters(), lr=0.05)
    for_judge = torch.optim.SGD(judge.parameters(), lr=0.05)
    for number, (data, _) in enumerate(loader):
        data = data.to(device)
        def one_pass(data):
            for_judge.zero_grad()
            made = maker(torch.randn(len(data), 8, device=device)).detach()
            told = F.softplus(-judge(data)).mean() + F.softplus(judge(made)).mean()
            told.backward()
            return made, told
        made, told = recorded(one_pass, data)
        for_judge.step()
        if number % 2:
            def pass_2(data):
                for_maker.zero_grad()
                made = maker(data)
                fooled = F.softplus(-judge(made)).mean() if judge.training else made.mean()
                fooled.backward()
                return made, fooled
            made, fooled = recorded(pass_2, data)
            for_maker.step()
            print(f"{read_early(pass_2, fooled):.4f}")
    print(f"{told.item():.4f}")


def step(model, optimizer, x, y):
    def one_pass(optimizer, model, x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
    recorded(one_pass, optimizer, model, x, y)
    optimizer.step()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.randn(250, 8), torch.randint(0, 2, (250,))), batch_size=16)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, loader, optimizer, device, nn.CrossEntropyLoss())
    shown(model, loader, optimizer, device, nn.CrossEntropyLoss())
    shown_before(model, loader, optimizer, device, nn.CrossEntropyLoss())
    for x, y in loader:
        step(model, optimizer, x.to(device), y.to(device))
    Trainer(model, device).run(loader)
    maker, judge = nn.Linear(8, 8).to(device), nn.Linear(8, 1).to(device)
    adversaries(maker, judge, loader, device)


if __name__ == "__main__":
    main()
