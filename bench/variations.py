"""Programs that nobody wrote: training code put together from pieces, and the catalogue's fixtures with lines moved.

Everything is drawn from the `random.Random` that is given, so that hypothesis can hand in one that shrinks, and a
number is enough to have a program again."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "catalogue"

Block = list["str | tuple[str, Block]"]  # lines, and headers with what stands below them

HEADS = (
    "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader",
    "import torch, numpy as np; import torch.nn as nn; from torch.utils.data import DataLoader",
    "from __future__ import annotations\nimport torch, torch.nn as nn\n"
    "from torch.utils.data import (  # all\n    DataLoader,\n)",
    '#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n"""Trains.\n\n# no comment\n"""\n'
    "import torch\nfrom torch import nn\nfrom torch.utils.data import *",
    "try:\n    import torch\nexcept ImportError:  # why not\n    torch = None\nfrom torch import nn as nn\n"
    "from torch.utils.data import Dataset, DataLoader as DataLoader",
    "if True: import torch; from torch import nn\nfrom torch.utils import data; DataLoader = data.DataLoader",
    "import torch\nfrom torch import nn\nfrom torch.utils.data import \\\n    DataLoader",
)
NAMES = ("x", "batch", "_", "größe", "模型", "ﬁt", "loader", "data", "self", "match", "type", "model", "torch")
KEYWORDS = (
    "batch_size=8",
    "shuffle=True",
    "num_workers=0",
    "num_workers=(n := 2)",
    "num_workers=2 if q else 0",
    "**options",
    "*rest",
    "pin_memory=bool(1)",
    "collate_fn=lambda b, *a, k=1, **kw: b",
    "num_workers = 4 ,  # four\n      ",
    "sampler=[*range(3)]",
    'worker_init_fn=f"{q!r:>{n}}"',
    "persistent_workers=not True",
    "prefetch_factor=\\\n   2",
    "generator=None",
    "drop_last=(\n  True  # why\n)",
    "**{'num_workers': 1, 'pin_memory': False}",
    "num_workers=-0x1_0",
)
DATASETS = (
    "TensorDataset(a, b)",
    "[1, 2, 3]",
    "torchvision.datasets.ImageFolder('x')",
    "Photos()",
    "data[::2]",
    "(yield)",
    "torch.utils.data.Subset(Photos(), [0])",
    "dataset",
    "f'{q}'",
    "lambda: 1",
)
OPTIMIZERS = (
    "torch.optim.Adam({model}.parameters(), lr=1e-3)",
    "torch.optim.SGD([*{model}.parameters()], 0.1, foreach=False)",
    "torch.optim.AdamW(params=[{{'params': {model}.parameters()}}], **options)",
    "getattr(torch.optim, 'SGD')({model}.parameters(), 1)",
    "torch.optim.AdamW(\n    {model}.parameters(),  # all\n    lr=1,\n)",
    "torch.optim.Adam({model}.parameters(),)",
)
MODELS = (
    "nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())",
    "nn.Linear(4, 1).cuda()",
    "nn.Linear(4, 1).to(device)",
    "nn.DataParallel(Net()).to('cuda', non_blocking=False)",
    "Net().double()",
    "torch.compile(Net())",
    "(m := Net()).cuda()",
    "nn.parallel.DistributedDataParallel(Net(), device_ids=[0])",
    "nn.Sequential(\n  nn.Conv2d(3, 8, 3), # one\n  nn.BatchNorm2d(8)\n)",
)
STEPS = (
    "{opt}.zero_grad()",
    "{opt}.zero_grad(set_to_none=False)",
    "{model}.zero_grad(); {opt}.step()",
    "{opt}.step()",
    "{x}, {y} = {x}.cuda(), {y}.to(device)",
    "{x} = {x}.to(device, non_blocking=False)",
    "{x} = {x}.to(device=device) # copy",
    "loss = criterion({model}({x}), {y})",
    "loss = ({model}({x}) - {y}).pow(2).mean()",
    "loss.backward()",
    "(loss / 4).backward()",
    "total += loss.item()",
    "total = total + loss",
    "losses.append(loss)",
    "print(f'{{loss.item():.3f}} {{total!r}}')",
    "if i % 10 == 0: print(loss.item())",
    "if i % 4 == 3: {opt}.step(); {opt}.zero_grad()",
    "loss = loss.cpu().detach().numpy()",
    "z = torch.zeros(3).to(device)",
    "z = torch.tensor(np.zeros(3)).cuda()",
    "z = torch.randn(2, 3, device='cpu').to({x}.device)",
    "if (v := loss.item()) > 3: break",
    "torch.cuda.synchronize(); torch.cuda.empty_cache()",
    "del loss, {x}",
    "loss.backward(); {opt}.step()",
    "out = torch.softmax(q @ k.transpose(-2, -1) / d ** 0.5, dim=-1) @ v",
    "torch.autograd.set_detect_anomaly(True)",
    "loss = nn.functional.mse_loss({model}({x}), {y}, size_average=True)",
    "for p in {model}.parameters(): p.grad = None",
    "with torch.cuda.amp.autocast(): loss = {model}({x})",
    "scaler.scale(loss).backward(); scaler.step({opt}); scaler.update()",
    "{x} = {x}.view(N, g, C // g, H, W).permute(0, 2, 1, 3, 4).reshape(N, C, H, W)",
    "x = (\n    {x}  # inner\n    .cuda()\n)",
    "[p.grad.data.zero_() for p in {model}.parameters()]",
    "print(*(t.item() for t in {x}), sep='')",
    "pass",
    "...",
    "yield loss",
    "{x}[:, 0:1] = {x}[..., None].cpu()",
    "assert torch.isnan(loss).any() == False, 'no'",
    "nn.utils.clip_grad_norm_({model}.parameters(), 1)",
    "{x} = {x}.double(); {y} = {y}.type(torch.float64)",
    "loss.backward(retain_graph=True)",
    "log = {{'loss': loss}}; history += [loss]",
    "'''\n# in a string\n  '''",
    "global total",
    "lambda: loss.item()",
    "{x}: torch.Tensor = {x}.cuda()",
    "await loss",
    "return loss",
)
LOOPS = (
    "for {x}, {y} in {loader}:",
    "for i, ({x}, {y}) in enumerate({loader}):",
    "for {x} in {loader}:",
    "while True:",
    "async for {x} in {loader}:",
    "for i, {x} in enumerate(tqdm({loader}, desc=f'{{i}}')):",
    "for *{x}, {y} in iter({loader}):",
)
WRAPS = (
    "if q:",
    "for _ in range(3):",
    "while q:",
    "with torch.no_grad():",
    "with open('x') as f, torch.enable_grad():",
    "def train({x}, *a, k=1, **kw):",
    "async def train():",
    "class Trainer(object):",
    "with torch.autograd.detect_anomaly():",
    "@torch.no_grad()\ndef validate({model}, loader):",
    "@(lambda f: f)\ndef step(self, /, b, *, c): # odd",
    "if __name__ == '__main__':",
    "with (torch.no_grad()):",
    "for epoch in (bar := range(2)):",
    "def evaluate(model, loader) -> 'float':",
)
NEWER = ("def train[T](x: T) -> T:", "class Trainer[*Ts]:") if sys.version_info >= (3, 12) else ()
NOTES = ("# note", "#", "# hotlap: ignore", "# type: ignore", "# größe ✓", "#\tx # y", "# fmt: off")


def program(rng: Random) -> str:
    """A training script of pieces, dressed in an odd way."""
    names = {key: rng.choice(NAMES) for key in ("x", "y", "opt", "model", "loader")}
    if rng.random() < 0.7:  # mostly names that a rule can follow
        names.update(opt="optimizer", model="model", loader="loader")
    body: Block = [f"{names['model']} = {rng.choice(MODELS)}", f"{names['loader']} = {loader(rng)}"]
    body.append(f"{names['opt']} = " + rng.choice(OPTIMIZERS).format(**names))
    rng.shuffle(body)
    for _ in range(rng.randint(1, 3)):
        steps: Block = [rng.choice(STEPS).format(**names) for _ in range(rng.randint(1, 7))]
        while rng.random() < 0.25:
            steps = wrapped(rng, steps, names)
        body.append((loop(rng, names), steps))
    while rng.random() < 0.5:
        body = wrapped(rng, body, names)
    unit = rng.choice(("    ", "    ", "  ", "\t", " "))
    return dressed(rng, rng.choice(HEADS) + "\n" + "\n".join(lines(body, "", unit)) + "\n")


def loader(rng: Random) -> str:
    given = [rng.choice(DATASETS), *(rng.choice(KEYWORDS) for _ in range(rng.randint(0, 4)))]
    return f"DataLoader({rng.choice((', ', ',', ' , '))[:2].join(given)}{rng.choice(('', ',', ' '))})"


def loop(rng: Random, names: dict[str, str]) -> str:
    return rng.choice(LOOPS).format(**names)


def wrapped(rng: Random, block: Block, names: dict[str, str]) -> Block:
    kind = rng.randint(0, 9)
    if kind == 0:
        return [
            ("try:", block),
            ("except* OSError:" if rng.random() < 0.3 else "except (OSError, KeyError) as e:", ["pass"]),
        ]
    if kind == 1:
        return [("try:", ["pass"]), ("finally:", block)]
    if kind == 2:
        return [("if q:", ["pass"]), ("elif (w := 1):", block), ("else:", ["..."])]
    if kind == 3:
        return [("match q:", [("case [a, *_] | {'k': a} if a:", block), ("case _:", ["pass"])])]
    return [(rng.choice(WRAPS + NEWER).format(**names), block)]


def lines(block: Block, indent: str, unit: str) -> list[str]:
    written = []
    for one in block:
        header, inside = one if isinstance(one, tuple) else (one, [])
        written += [indent + piece for piece in header.split("\n")]
        written += lines(inside, indent + unit, unit)
    return written


def dressed(rng: Random, text: str) -> str:
    """With comments, blanks, semicolons and line endings where a formatter would not leave them."""
    for _ in range(rng.randint(0, 5)):
        text = tried(text, rng.choice(DRESSES)(rng, text))
    return text.replace("\n", "\r\n") if rng.random() < 0.2 else text.rstrip("\n") if rng.random() < 0.1 else text


def tried(text: str, other: str) -> str:
    """The other text where Python takes it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(other)
    except (SyntaxError, ValueError):
        return text
    return other


def fixtures() -> list[str]:
    return [path.read_text() for path in sorted(FIXTURES.glob("*/*.py"))]


def mutated(rng: Random, texts: Sequence[str]) -> str:
    """A fixture with some lines deleted, doubled, swapped, wrapped or renamed, and dressed."""
    text = rng.choice(texts)
    for _ in range(rng.randint(1, 6)):
        text = tried(text, rng.choice(MUTATIONS)(rng, text))
    return dressed(rng, text)


def deleted(rng: Random, text: str) -> str:
    rows = text.split("\n")
    del rows[rng.randrange(len(rows))]
    return "\n".join(rows)


def doubled(rng: Random, text: str) -> str:
    rows = text.split("\n")
    at = rng.randrange(len(rows))
    return "\n".join([*rows[: at + 1], *rows[at:]])


def swapped(rng: Random, text: str) -> str:
    rows = text.split("\n")
    at = rng.randrange(len(rows))
    rows[at - 1], rows[at] = rows[at], rows[at - 1]
    return "\n".join(rows)


def put_under(rng: Random, text: str) -> str:
    """Some lines of one block below a header of their own."""
    rows = text.split("\n")
    first = rng.randrange(len(rows))
    indent = rows[first][: len(rows[first]) - len(rows[first].lstrip())]
    last = first
    while last < len(rows) and (not rows[last].strip() or rows[last].startswith(indent)) and rng.random() < 0.9:
        last += 1
    names = {"x": "a", "model": "m"}
    (above, *_), *_ = [lines(wrapped(rng, ["pass"], names), indent, "    ")]
    if rng.random() < 0.3:
        above = indent + "try:"
    moved = ["    " + row if row.strip() else row for row in rows[first:last]]
    below = [indent + "finally: pass"] if above.endswith("try:") else []
    return "\n".join([*rows[:first], above, *moved, *below, *rows[last:]])


def renamed(rng: Random, text: str) -> str:
    words = sorted(set(re.findall(r"[A-Za-z_]\w*", text)))
    old = rng.choice(words or ["x"])
    new = rng.choice((*NAMES, *words[:20], "DataLoader", "optimizer"))
    return re.sub(rf"\b{re.escape(old)}\b", new, text, count=rng.choice((0, 1, 2)))


def noted(rng: Random, text: str) -> str:
    """A comment after a line, or above it at some indentation."""
    rows = text.split("\n")
    at, note = rng.randrange(len(rows)), rng.choice(NOTES)
    if rng.random() < 0.6 and rows[at].strip():
        rows[at] += "  " + note
    else:
        rows.insert(at, " " * rng.randint(0, 9) + note)
    return "\n".join(rows)


def joined(rng: Random, text: str) -> str:
    rows = text.split("\n")
    at = rng.randrange(len(rows))
    if at + 1 < len(rows) and rows[at + 1].strip():
        rows[at : at + 2] = [rows[at] + rng.choice((";", " ; ")) + rows[at + 1].lstrip()]
    return "\n".join(rows)


def broken(rng: Random, text: str) -> str:
    """A line continued by a backslash, or by a break within brackets."""
    places = [found.start() for found in re.finditer(r" [=+@]|[(\[,]", text)]
    at = rng.choice(places) + 1 if places else 0
    return text[:at] + rng.choice((" \\\n", "\n", "\n\n  ", "  # within\n\t")) + text[at:]


def blanked(rng: Random, text: str) -> str:
    rows = text.split("\n")
    rows.insert(rng.randrange(len(rows)), rng.choice(("", "   ", "\t", "\x0c", "\x0c  ")))
    return "\n".join(rows)


def tabbed(rng: Random, text: str) -> str:
    return re.sub(r"^(?:    )+", lambda found: "\t" * (len(found[0]) // 4), text, flags=re.MULTILINE)


def hugged(rng: Random, text: str) -> str:
    """The body of a header on the header's own line."""
    places = list(re.finditer(r":\n[ \t]+(?=\S)", text))
    found = rng.choice(places) if places else None
    return text if found is None else text[: found.start()] + ": " + text[found.end() :]


DRESSES = (noted, noted, joined, broken, blanked, hugged)
MUTATIONS = (deleted, doubled, swapped, put_under, put_under, renamed, renamed, joined, broken, tabbed, hugged)
