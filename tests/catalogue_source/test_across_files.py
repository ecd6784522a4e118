"""Techniques whose evidence lies in another file than the place they report."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.source.module import Source

LOADING = "from torch.utils.data import DataLoader\n"
CASES = {
    "async-copies: a loader pinned by the caller": (
        "import torch\ndef evaluate(model, loader, device):\n    for x in loader:\n        model(x.to(device))  # <-\n",
        LOADING + "from engine import evaluate\nevaluate(model, DataLoader(d, pin_memory=True), device)\n",
    ),
    "async-copies: a loader not pinned by one of two callers": (
        "import torch\ndef evaluate(model, loader, device):\n    for x in loader:\n        model(x.to(device))\n",
        LOADING + "from engine import evaluate\nevaluate(model, DataLoader(d, pin_memory=True), device)\n"
        "evaluate(model, DataLoader(d), device)\n",
    ),
    "persistent-workers: settings that a process is started with": (
        LOADING + "def train(options):\n    loader = DataLoader(d, **options)  # <-\n"
        "    for epoch in range(9):\n        for x in loader:\n            pass\n",
        "import torch.multiprocessing as mp\nfrom engine import train\noptions = {'batch_size': 4}\n"
        "if cuda:\n    options.update({'num_workers': 2})\nmp.Process(target=train, args=(options,)).start()\n",
    ),
    "persistent-workers: chosen by the caller": (
        LOADING + "def train(options):\n    loader = DataLoader(d, **options)\n"
        "    for epoch in range(9):\n        for x in loader:\n            pass\n",
        "from engine import train\noptions = {'num_workers': 2}\nif more:\n"
        "    options['persistent_workers'] = True\ntrain(options)\n",
    ),
    "device-born-tensors: a loss of the caller's loop": (
        "import torch\ndef weighted(out):\n    return out * torch.arange(4).to(out.device)  # <-\n"
        "def shown(out):\n    return out * torch.arange(4).to(out.device)\n",
        "from engine import weighted, shown\nfor x in batches:\n    weighted(model(x)).sum().backward()\n"
        "    optimizer.step()\nshown(model(x))\n",
    ),
    "grad-free-evaluation: results that a caller only looks at": (
        "import torch\ndef evaluate(model, batches):\n    model.eval()\n"
        "    return torch.stack([model(x).mean() for x in batches]).mean()  # <-\n",
        "from engine import evaluate\ndef main():\n    for x in batches:\n        loss = model(x).sum()\n"
        "        loss.backward()\n    best = evaluate(model, batches).item()\n    print(best)\n",
    ),
    "grad-free-evaluation: results that a caller goes back through": (
        "import torch\ndef evaluate(model, batches):\n    model.eval()\n"
        "    return torch.stack([model(x).mean() for x in batches]).mean()\n",
        "from engine import evaluate\ndef adapted():\n    return evaluate(model, batches), 1\n"
        "def main():\n    loss, n = adapted()\n    scaled = loss / n\n    scaled.backward()\n",
    ),
    "sync-free-loop: a function of every step, and one of every tenth": (
        "import torch\ndef score(model, x):\n    x = x.to(device)\n    return x.mean().item()  # <-\n"
        "def rare(model, x):\n    x = x.to(device)\n    return x.mean().item()\n",
        "from engine import score, rare\nfor i, x in enumerate(batches):\n    model(x).sum().backward()\n"
        "    optimizer.step()\n    score(model, x)\n    if i % 10 == 0:\n        rare(model, x)\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_caller_says_decides(case: str, tmp_path) -> None:
    engine, main = CASES[case]
    (tmp_path / "engine.py").write_text(engine)
    (tmp_path / "main.py").write_text(main)
    source = Source.read(tmp_path / "engine.py")
    wanted = [number for number, line in enumerate(source.text.split("\n"), 1) if line.endswith("# <-")]
    assert [site.line for site in find(case.partition(":")[0]).spot(source)] == wanted


def test_what_another_file_holds_cannot_be_written_here(tmp_path) -> None:
    engine, main = CASES["persistent-workers: settings that a process is started with"]
    (tmp_path / "engine.py").write_text(engine)
    (tmp_path / "main.py").write_text(main)
    assert [site.fix for site in find("persistent-workers").spot(Source.read(tmp_path / "engine.py"))] == [None]
