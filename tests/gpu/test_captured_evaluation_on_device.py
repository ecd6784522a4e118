"""Evaluations recorded as CUDA graphs: the scores of the plain model, while it is trained in between."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.parts.captured_evaluation import CapturedEvaluation

pytestmark = pytest.mark.gpu


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 36, 4)]
    return nn.Sequential(*layers).cuda()


@pytest.mark.parametrize("low", [False, True], ids=["as it is", "in bf16"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_same_scores_while_it_is_trained(mode, low: bool) -> None:
    model, own = network(), CapturedEvaluation()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 3, 8, 8, device="cuda")), torch.arange(8, device="cuda") % 4)
            loss.backward()
            optimizer.step()
        model.eval()
        kept = []
        with mode(), torch.autocast("cuda", torch.bfloat16, enabled=low):
            for _ in range(12):
                x = torch.randn(16, 3, 8, 8, device="cuda")
                ours, theirs = own.call(model, (x,), {}), model(x)
                torch.testing.assert_close(ours, theirs, rtol=1e-2 if low else 1e-4, atol=1e-3)
                kept.append((ours, ours.clone()))
        assert all(torch.equal(*pair) for pair in kept)
        assert own.refused == "" and own.replays == 12 * (epoch + 1) - 4


def test_rows_that_grow_and_then_stay() -> None:
    model, own = nn.Sequential(nn.Embedding(65, 32), nn.Linear(32, 65)).cuda().eval(), CapturedEvaluation()
    text = torch.randint(0, 65, (1, 8), device="cuda")
    with torch.no_grad():
        for _ in range(60):
            seen = text[:, -24:]
            logits = own.call(model, (seen,), {})
            torch.testing.assert_close(logits, model(seen))
            text = torch.cat([text, logits[:, -1:].argmax(dim=-1)], dim=1)
    assert own.refused == "" and own.replays > 30
