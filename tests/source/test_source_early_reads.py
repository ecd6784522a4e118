"""Statements that need no more than the results of a pass: which are found, with what, and which are left alone."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.source.early_reads import readings
from hotlap.source.fix import rewritten
from hotlap.source.module import Source
from hotlap.source.single_reads import single_reads
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
        ("if seen:\n    losses.append(loss.item())\nelse:\n    print(loss.item())", ["loss.item()"] * 2),
        ("if seen:\n    with torch.no_grad():\n        print(loss.item(), out.mean().item())", ["loss.item()"]),
        ("if math.isnan(loss.item()):\n    raise ValueError", ["loss.item()"]),
        ("if seen and loss.item() > 1:\n    raise ValueError", []),
        ("if seen:\n    reduce(loss)\n    print(loss.item())\nelse:\n    print(loss.item())", ["loss.item()"]),
        ("if seen:\n    reduce(loss)\nprint(1, loss.item())", []),
        ("if synced(loss):\n    log.append(loss.item())\nelse:\n    print(loss.item())", []),
        ("if (alias := loss) is not None:\n    alias.data.div_(2)\n    print(loss.item())", []),
        ("with averaged(loss):\n    print(loss.item())", []),
        ("log.append((synced(loss), loss.item()))", []),
        ("total += synced(loss) + loss.item()", []),
        ("log(loss, loss.item())", []),
        ("synced(loss).log(loss.item())", []),
        ("self.log(loss.item(), step=seen)", ["loss.item()"]),
        ("for _ in range(seen):\n    print(loss.item())", []),
        ("losses.append(other.item())", []),
        ("losses.append(loss.item(kind=1))", []),
        ("total += loss.item() / len(loader)", ["loss.item()"]),  # a loader is no number
        ("totals[0] += loss.item()", ["loss.item()"]),  # nor is a list
    ],
)
def test_single_reads_in_other_statements(body: str, reads: list[str]) -> None:
    assert found(body)[2] == reads


@pytest.mark.parametrize(
    "body",
    [
        "dist.all_reduce(loss)",
        "if seen:\n    dist.all_reduce(loss.detach())",
        "reduced = loss\ndist.all_reduce(reduced)",
        "loss.data.mul_(2)",
        "meter(loss=loss)",
        "del loss",
    ],
)
def test_what_somebody_else_may_have_changed_is_waited_for(body: str) -> None:
    """Not every change of a tensor is counted in it: that of `all_reduce` is not."""
    lines, _, singles = found(f"{body}\ntotal += loss.item()\nlosses.append(loss.item())")
    assert lines == [] and singles == []


@pytest.mark.parametrize(
    "body",
    [
        "losses.append(loss.item())",
        "print(loss, f'{loss}', loss.shape, float(loss.detach()))",
        "kept += loss.detach() * 2",
        "hits = (out.argmax(1) == y.view_as(out)).sum(), out.max(1), len(y)",
        "meter(out)",
    ],
)
def test_what_is_only_looked_at_is_not(body: str) -> None:
    assert found(f"{body}\nprint()\ntotal += loss.item()")[0] == ["total += loss.item()"]


@pytest.mark.parametrize(("method", "is_early"), [("self.optimizer.step()", True), ("self.reduce()", False)])
def test_what_a_method_may_have_changed_is_waited_for(method: str, is_early: bool) -> None:
    text = f"""import torch
from torch import nn
class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def step(self, x):
        self.loss = self.model(x).sum()
        self.loss.backward()
        {method}
        return self.loss.item()
    def run(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.step(x.cuda())
"""
    source = Source(text)
    (one,) = straight_passes(source)
    assert (readings(source, one) is not None) is is_early


@pytest.mark.parametrize(
    "body",
    [
        "kept.append(out.to('cpu', non_blocking=True))",
        "kept.append(out.to(device=torch.device('cpu'), non_blocking=True))",
        "host.copy_(out, non_blocking=True)",
        "took = start.elapsed_time(end)",
    ],
)
def test_what_nobody_else_waits_for_is_waited_for(body: str) -> None:
    lines, _, singles = found(f"total += loss.item()\nlosses.append(loss.item())\n{body}")
    assert lines == [] and singles == []
    assert found("total += loss.item()\nx = x.to('cuda', non_blocking=True)")[0] == ["total += loss.item()"]


def test_a_name_for_a_result_is_no_number() -> None:
    assert found("shown = loss\nprint()\nshown += out.sum().item()")[0] == []
    assert found("rows = out\nprint()\nrows[0] += loss.item()")[0] == []


def test_a_name_that_may_not_be_set_fails_in_its_own_statement() -> None:
    assert found("mean = out.mean()\nunset += mean.item()")[0] == []
    assert found("seen += 1\nunset += loss.item()")[0] == ["unset += loss.item()"]
    assert found("total += loss.item()\nunset += 1")[0] == ["total += loss.item()"]
    assert len(found("unset += loss.item()\nseen += out.mean().item()")[0]) == 2


def test_a_tensor_that_is_added_to_afterwards_leaves() -> None:
    assert found("best = out.argmax(1)\nright += best.sum().item()\nbest += 1")[0] == []


def test_text_that_is_shown_is_left_as_it_is() -> None:
    assert found("print(f'{loss.item()=}')")[2] == []
    assert found("print(f'{loss.item() = :.2f}')")[2] == []


def test_numbers_that_can_wait_longer_are_left_to_those_who_let_them() -> None:
    """Whatever the order of a plan, `sync-free-loop` sees the loop before its statements are moved."""
    source = Source(HEAD + "        total += loss.item()\n        print(out.mean().item())\n    print(total)\n")
    both = [(find(name), None) for name in ("captured-pass", "sync-free-loop")]
    texts = {rewritten(source, choices, unsafe=True, doubtful=True).text for choices in (both, both[::-1])}
    assert len(texts) == 1
    (text,) = texts
    assert "total += read_later(loss)" in text and "recorded(one_pass" in text and "reading_early" not in text
