"""What is only likely to help: withheld by `check` and `fix`, written where a plan has measured it. And what looks
like a reason to keep silent, or to speak, and is none."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.source.fix import fix_source, rewritten
from hotlap.source.module import Source

STEP = "loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n"
CASES = {
    "fused-optimizer": (
        "import torch\nmodel = torch.nn.Linear(4, 2)\noptimizer = torch.optim.Adam(model.parameters())\n"
        "for x in episodes():\n    " + STEP,
        ("for x", "model.to(device)\nfor x"),
        "fused=True",
    ),
    "pinned-batches": (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "for x in DataLoader(data, batch_size=4):\n    x = x.to(device)\n    " + STEP,
        ("batch_size=4", "batch_size=4, num_workers=2"),
        "pin_memory=True",
    ),
}


@pytest.mark.parametrize("technique_id", CASES)
def test_it_is_withheld_until_it_was_measured(technique_id: str) -> None:
    technique = find(technique_id)
    text, (old, new), written = CASES[technique_id]
    sites = list(technique.spot(Source(text)))
    assert [site.doubtful for site in sites] == [True]
    assert fix_source(Source(text), [(technique, None)], unsafe=True) == text
    assert written in rewritten(Source(text), [(technique, None)], unsafe=True, doubtful=True).text
    sure = Source(text.replace(old, new))
    assert [site.doubtful for site in technique.spot(sure)] == [False]
    assert written in fix_source(sure, [(technique, None)], unsafe=True)


GRAPH = """import torch
def step(model, optimizer, x):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
if __name__ == "__main__":
    device = torch.device("cuda")
    graph = torch.eye(4)LAYOUT.to(device)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(9):
        step(model, optimizer, graph)
"""


def test_a_network_from_elsewhere_may_be_on_a_device() -> None:
    text, made = CASES["fused-optimizer"][0], "model = torch.nn.Linear(4, 2)"
    for other in ("from mine import model", f"from accelerate import Accelerator\n{made}"):
        source = Source(text.replace(made, other))
        assert [site.doubtful for site in find("fused-optimizer").spot(source)] == [False]


def test_a_sparse_input_leaves_gradients_dense() -> None:
    for technique_id, found in {"fused-optimizer": 1, "mixed-precision": 0}.items():
        sites = list(find(technique_id).spot(Source(GRAPH.replace("LAYOUT", ".to_sparse()"))))
        assert len(sites) == found, technique_id
    assert len(list(find("mixed-precision").spot(Source(GRAPH.replace("LAYOUT", ""))))) == 1
    sparse = "import torch\ne = torch.nn.Embedding(9, 9, sparse=True)\ntorch.optim.Adam(e.parameters())\n"
    assert list(find("fused-optimizer").spot(Source(sparse))) == []


def test_a_function_knows_its_device_by_its_model() -> None:
    """`device` is bound only when the file is run: who imports the function has none."""
    text = GRAPH.replace("LAYOUT", "")
    fixed = fix_source(Source(text), [(find("mixed-precision"), None)], unsafe=True)
    assert "with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):" in fixed
    everywhere = text.replace("def step", 'device = "cuda"\ndef step', 1).replace(
        '    device = torch.device("cuda")\n', ""
    )
    assert "with torch.autocast(device, dtype" in fix_source(
        Source(everywhere), [(find("mixed-precision"), None)], unsafe=True
    )
