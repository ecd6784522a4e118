"""The host waits for the device several times a step, and at every evaluation batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, device):
    total, running, right = 0.0, 0.0, 0
    smooth = 0.0
    history = []
    for number, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        answers = model(inputs)
        loss = nn.functional.cross_entropy(answers, labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * inputs.size(0)
        running += loss.item()
        right += int((answers.argmax(dim=1) == labels).sum())
        smooth = 0.9 * smooth + 0.1 * loss.item()
        if number % 4 == 3:
            print(f"{number}: {running / 4:.4f} {smooth=}")
            history.append(running / 4)
            running = 0.0
    print("{} of {}".format(right, len(loader.dataset)), "%.6f" % (total / len(loader.dataset)))
    return {"loss": total, "right": right, "history": history}


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    test_loss = 0
    correct = 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        output = model(data)
        test_loss += nn.functional.cross_entropy(output, target, reduction="sum").item()
        correct += output.argmax(dim=1, keepdim=True).eq(target.view_as(output[:, :1])).sum().item()

    test_loss /= len(loader.dataset)
    print(f"\nTest set: {test_loss:.4f}, {correct}/{len(loader.dataset)} ({100. * correct / len(loader.dataset):.0f}%)")
    return test_loss, correct


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(TensorDataset(torch.randn(250, 8), torch.randint(0, 2, (250,))), batch_size=16)
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        print(train(model, loader, optimizer, device))
        print(test(model, loader, device))


if __name__ == "__main__":
    main()
