"""Findings that are reported and never rewritten, which the fixtures (whose before.py becomes after.py) cannot hold.

A line that ends in `# <-` must be found, every other line must not."""

from __future__ import annotations

import textwrap

import pytest

from hotlap.catalogue import find
from hotlap.source.module import Source

HEAD = """
import torch, os
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.nn.utils import clip_grad_norm
"""

CASES = {
    "grads-to-none: cleared between backward and step": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches:
            loss = model(x).mean()
            loss.backward()
            optimizer.zero_grad()  # <-
            optimizer.step()
    """,
    "grads-to-none: through the model, a scaler, and a gathering": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, x in enumerate(batches):
            scaler.scale(model(x).mean()).backward()
            optimizer.zero_grad()  # <-
            if i % 2:
                scaler.step(optimizer)
        for x in batches:
            model(x).mean().backward()
            model.zero_grad()  # <-
            optimizer.step()
    """,
    "grads-to-none: another model's gradients, a scheduler, gradients added by hand": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches:
            other(model(x)).mean().backward()
            other.zero_grad()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            scheduler.step()
        for p, g in zip(model.parameters(), gradients):
            p.grad += g
    """,
    "debug-off: a profiler round the training, a check inside it": """
        with torch.profiler.profile() as profiler:  # <-
            for x in batches:
                loss = model(x).mean()
                torch.autograd.gradcheck(model, x)  # <-
                loss.backward()
                optimizer.step()
        for x in batches:
            with torch.autograd.profiler.emit_nvtx():  # <-
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
    """,
    "current-apis: what has no one-for-one successor": """
        from apex import amp
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")  # <-
        x = Variable(batch, volatile=True)  # <-
        w = Variable(batch, requires_grad=True)  # <-
        clip_grad_norm(model.parameters(), 1.0)  # <-
        with torch.cuda.amp.autocast(True, torch.float16):  # <-
            pass
        nn.MSELoss(size_average=choose())  # <-
        @torch.jit.script  # <-
        def gelu(x):
            return x * 0.5 * (1.0 + torch.erf(x / 1.41421))
        fast = torch.jit.trace(model, x)  # <-
    """,
    "no-data-parallel: wherever the devices or the checkpoint are not known": """
        model = nn.DataParallel(model)  # <-
        out = nn.parallel.data_parallel(model, x, [0, 1])  # <-
        one = nn.DataParallel(model, device_ids=[0])  # <-
        torch.save(one.module.state_dict(), "x.pt")
    """,
    "grad-accumulation: the last group": """
        for i, x in enumerate(batches):
            loss = model(x).mean() / 4
            loss.backward()
            if (i + 1) % 4 == 0:  # <-
                optimizer.step()
                optimizer.zero_grad()
    """,
    "fused-attention: a finite mask, dropout from elsewhere, a mask under a condition": """
        class Block(nn.Module):
            def __init__(self, drop):
                super().__init__()
                self.softmax = nn.Softmax(dim=-1)
                self.attn_drop = drop
            def forward(self, q, k, v, mask):
                attn = q @ k.transpose(-2, -1)
                attn = attn.masked_fill(mask == 0, -1e9)
                attn = self.softmax(attn)  # <-
                return attn @ v
            def dropped(self, q, k, v, mask=None):
                scores = torch.bmm(q, k.transpose(1, 2)) / 8
                if mask is not None:
                    scores = scores.masked_fill(mask, float("-inf"))
                p_attn = F.softmax(scores, dim=-1)  # <-
                p_attn = self.attn_drop(p_attn)
                return torch.bmm(p_attn, v)
    """,
    "device-born-tensors: with a name, an index from the host, or a size alone": """
        def batches():
            for _ in range(10):
                inputs = torch.randn(4, 3)  # <-
                labels = torch.zeros(4, 2).scatter_(1, indices, 1)  # <-
                shown = torch.ones(4)
                print(shown)
                given = torch.LongTensor(sizes).to(device)
                target = torch.LongTensor(4).random_(8).to(device)  # <-
                yield inputs.cuda(), labels.cuda(), target, shown.cuda(), given
        for epoch in range(3):
            for inputs, labels, target, _, _ in batches():
                model(inputs).mean().backward()
    """,
    "sync-free-loop: copied, decided by, or shown in every step": """
        import math
        def train(model, loader, optimizer, device):
            history = []
            model.train()
            for number, (inputs, labels) in enumerate(loader):
                inputs, labels = inputs.to(device), labels.to(device)
                answers = model(inputs)
                loss = F.cross_entropy(answers, labels)
                loss.backward()
                optimizer.step()
                history.append(answers.detach().mean().cpu().numpy())  # <-
                if loss > 1e6 or not math.isfinite(loss):  # <-
                    break
                print(f"{number}: {loss:.4f}")  # <-
            return history
    """,
    "sync-free-loop: whichever way an evaluation goes": """
        def check(model, loader, device, classes):
            right = []
            model.eval()
            with torch.no_grad():
                for inputs, labels in loader:
                    inputs, labels = inputs.to(device), labels.to(device)
                    if classes == 1:
                        assert labels.max() <= 1  # <-
                    else:
                        assert labels.max() < classes and labels.min() >= 0  # <-
                    right += (model(inputs).argmax(dim=1) == labels).cpu()  # <-
            return right
    """,
    "sync-free-loop: returned by a function of every step": """
        model = nn.Linear(8, 2).to(device)
        def whole(inputs, labels):
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            return score(inputs, labels)
        def score(inputs, labels):
            with torch.no_grad():
                right = (model(inputs).argmax(dim=1) == labels).float()
            return right.mean().item()  # <-
        model.train()
        for _ in range(3):
            print(whole(inputs, labels))
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_reported_and_never_rewritten(case: str) -> None:
    technique = find(case.partition(":")[0])
    source = Source(HEAD + textwrap.dedent(CASES[case]))
    wanted = [number for number, line in enumerate(source.text.split("\n"), 1) if line.endswith("# <-")]
    found = sorted(technique.spot(source), key=lambda site: site.line)
    assert [site.line for site in found] == wanted
    assert [site.fix for site in found] == [None] * len(found)
