"""Statements that need no more than the results of a pass: which are found, with what, and which are left alone."""

from __future__ import annotations

import pytest

from hotlap.source.early_reads import readings, single_reads
from hotlap.source.module import Source
from hotlap.source.straight_passes import straight_passes

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(loader):
    total = right = seen = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
"""


def found(body: str, after: str = "    return total, right, seen, loss, out\n"):
    source = Source(HEAD + "".join(f"        {line}\n" for line in body.split("\n")) + after)
    (one,) = straight_passes(source)
    run = readings(source, one)
    lines = [source.segment(statement) for statement in run.statements] if run else []
    return lines, run.names if run else (), [source.segment(node) for node in single_reads(source, one, run)]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("total += loss.item()", "total loss"),
        ("total += float(loss) * x.size(0)", "total loss x"),
        ("_, p = out.max(1)\nseen += y.shape[0]\nright += p.eq(y).sum().item()", "out seen y right"),
        ("right += (out.argmax(dim=1) == y).float().mean().item()", "right out y"),
        ("right += int((torch.argmax(out, 1) == y).sum())", "right out y"),
        ("values, best = out.detach().topk(2, 1)\nright += best[0].tolist()[0]", "out right"),
        ("now = loss.item()\ntotal = 0.9 * total + 0.1 * now + out.mean().item()", "loss total out"),
        ("now, seen = loss.item(), seen + len(y)", "loss seen y"),
        ("best = out.data.max(1, keepdim=True)[1]\nright += best.eq(y.view_as(best)).sum().item()", "out right y"),
    ],
)
def test_statements_that_read_results(body: str, names: str) -> None:
    lines, used, singles = found(body)
    assert (lines, " ".join(used), singles) == (body.split("\n"), names, [])


@pytest.mark.parametrize(
    "body",
    [
        "total += loss",  # reads nothing
        "print(total)",
        "total += model(x).mean().item()",  # of the weights as they are now
        "total += meter(out).item()",
        "total += self.weight.sum().item()",
        "total += loss.item() if seen else 0",
        "total += sum(one.item() for one in out)",
        "if seen:\n    total += loss.item()",
        "out[0] = 1\ntotal += out.clamp_(0).sum().item()",
        "right += out.argmax(1).eq(y.to('cpu')).sum().item()",
        "right += out.cpu().sum().item()",
        "loss += 1.0",
        "total += torch.rand(1).item()",
    ],
)
def test_statements_that_may_do_something_else(body: str) -> None:
    assert found(body)[0] == []


def test_they_end_where_something_else_is_done() -> None:
    lines, names, _ = found("total += loss.item()\nprint(total)\nright += out.sum().item()")
    assert lines == ["total += loss.item()"] and names == ("total", "loss")


def test_they_need_not_come_at_once() -> None:
    lines, _, _ = found("print(seen)\nmean = out.mean()\ntotal += loss.item() + mean.item()")
    assert lines == ["mean = out.mean()", "total += loss.item() + mean.item()"]


def test_numbers_before_and_after_stay_outside() -> None:
    lines, names, _ = found("seen += 1\ntotal += loss.item()\nseen += 1\nrate = (seen + 1) / len(loader)\nprint(rate)")
    assert lines == ["total += loss.item()"] and names == ("total", "loss")


def test_no_tensor_leaves_them() -> None:
    body = "total += loss.item()\n_, best = out.max(1)\nright += best.eq(y).sum().item()\n{}"
    assert len(found(body.format("print(right)"))[0]) == 3
    lines, names, _ = found(body.format("print(best)"))
    assert lines == ["total += loss.item()"] and names == ("total", "loss")
    assert found("_, best = out.max(1)\nright += best.sum().item()\nkept.append(best)")[0] == []


def test_a_result_that_is_set_anew_is_plain_from_then_on() -> None:
    lines, names, _ = found("loss = loss.item()\ntotal += loss + out.mean().item()")
    assert len(lines) == 2 and names == ("loss", "total", "out")
    assert found("loss = loss.item()\ntotal += loss.item()")[0] == ["loss = loss.item()"]


def test_what_a_function_for_one_step_returns() -> None:
    outer = "def train(loader):\n    total = right = seen = 0\n    for x, y in loader:\n"
    text = HEAD.replace(outer, "def step(x, y):\n").replace("        ", "    ")
    source = Source(f"{text}    return loss.item(), len(y)\n\nfor x, y in loader:\n    print(step(x, y))\n")
    (one,) = straight_passes(source)
    run = readings(source, one)
    assert run is not None and run.names == ("loss", "y")


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("losses.append(loss.item())", ["loss.item()"]),
        ("bar.set_postfix(loss=f'{loss.item():.2f}')", ["loss.item()"]),
        ("history[0] = loss.item(), out.mean().item()", ["loss.item()"]),
        ("losses.append(loss.item() if seen else 0)", []),
        ("losses.append([loss.item() for _ in x])", []),
        ("losses.append(lambda: loss.item())", []),
        ("if seen:\n    losses.append(loss.item())", []),
        ("losses.append(other.item())", []),
    ],
)
def test_single_reads_in_other_statements(body: str, reads: list[str]) -> None:
    assert found(body)[2] == reads
