"""Passes that may stand in a function of their own: what goes in and what comes out, or why they are left alone."""

from __future__ import annotations

import ast

import pytest

from hotlap.source.fix import rewritten
from hotlap.source.module import Source
from hotlap.source.straight_passes import Pass, straight_passes

HEAD = """import random
import numpy
import torch
import torch.nn.functional as F
from torch.cuda.amp import autocast
model = torch.nn.Linear(2, 2).cuda()
judge = torch.nn.Linear(2, 1).cuda()
for_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def found(body: str, around: str = "def train(loader):\n    for x, y in loader:\n{}\n        optimizer.step()\n"):
    lines = "\n".join(f"        {line}" for line in body.strip("\n").split("\n"))
    (one,) = straight_passes(Source(HEAD + around.format(lines)))
    return one


@pytest.mark.parametrize(
    ("body", "inputs", "results"),
    [
        ("optimizer.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()", "x y", ""),
        ("F.mse_loss(model(x), y).backward()", "x y", ""),
        ("loss = F.mse_loss(model(x.cuda()), y.cuda())\nloss.backward()\nprint(loss.item())", "x y", "loss"),
        ("x, y = x.cuda(), y.cuda()\nout = model(x)\nloss = (out - y).mean()\nloss.backward()\nlog(out)", "x y", "out"),
        ("with autocast():\n    out = model(x)\n    loss = out.mean()\nloss.backward()\nlog(loss)", "x", "loss"),
        ("out = model(x)\nloss = out.mean()\nloss += out.std()\nloss.backward()\nlog(loss)", "x", "loss"),
        ("out: torch.Tensor = model(x)\nout.mean().backward()", "x", ""),
        ("weight = 0.5 * len(x)\nlog(weight)\nout = model(x) * weight\nout.mean().backward()", "x weight", ""),
        ("state = x if y else y\nstate, out = model(state, x)\nout.mean().backward()", "state x", ""),
        ("out = torch.log(model(x)).log()\nout.masked_fill(y, float('-inf')).mean().backward()", "x y", ""),
        ("optimizer.zero_grad()\nx, y = x.cuda(), y.cuda()\n(model(x) - y).mean().backward()\nlog(y)", "x y", "y"),
        ("state = model(state, x)\nstate.mean().backward()", "state x", "state"),
        ("a, b = model(x), y\n(a - b).mean().backward()\nlog(b)", "x y", "b"),
        ("loss = model(x).mean() if len(x) else y\nloss.backward()", "x y", ""),
        ("if len(x):\n    model(x).mean().backward()", "x", ""),
        ("model(*x).mean().backward()", "x", ""),
        (
            "out = model(x)\nif a.b:\n    loss = out.sum()\nelse:\n    loss = out.mean()\nloss.backward()\nlog(loss)",
            "x",
            "loss",
        ),
        ("out = model(x)\nif args.sums:\n    a = out * y\n    out = a + 1\nout.mean().backward()", "x y", ""),
        ("z = numpy.random.rand(2)\nout = model(x, z)\nout.mean().backward()", "x z", ""),
        ("loss = sum(model(one).mean() for one in x)\nloss.backward()", "x", ""),
        ("z = torch.randn(2, 2).cuda()\nmodel(z).mean().backward()", "z", ""),
        ("optimizer.zero_grad()\nz = torch.randn(2, device=x.device)\nmodel(z).mean().backward()", "x", ""),
        ("optimizer.zero_grad()\nz = torch.randn(2, **likeness)\nmodel(z).mean().backward()", "", ""),
        ("loss = sum([model(x)[one] for one in y if one])\nloss.backward()", "x y", ""),
        ("x = sum(model(x) for x in y)\nx.mean().backward()\nlog(x)", "y", "x"),
        ("for part in x:\n    model(part).mean().backward()", "part", ""),
        (
            "out = model(x)\n(slope,) = torch.autograd.grad(out.sum(), y, create_graph=True)\nslope.norm().backward()",
            "x y",
            "",
        ),
        ("for number in range(3):\n    model(x[number], y).mean().backward()", "x number y", ""),
        ("loss = model(x).mean()\nfor one in y:\n    loss += model(one).mean()\nloss.backward()", "x y", ""),
        ("state = x\nlog(x)\nfor one in y:\n    state = model(one, state)\nstate.sum().backward()", "y state", ""),
        ("state = x\nlog(x)\nif y:\n    state = model(state)\nmodel(state).backward()\nlog(state)", "y state", "state"),
    ],
)
def test_passes_with_what_goes_in_and_comes_out(body: str, inputs: str, results: str) -> None:
    one = found(body)
    assert isinstance(one, Pass), one
    assert (" ".join(one.inputs), " ".join(one.results)) == (inputs, results)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("loss = model(x).mean()\nprint(loss)\nloss.backward()", "does something else"),
        ("loss = model(x).mean()\nlog(loss.item())\nloss.backward()", "does something else"),
        ("loss = model(x).mean()\nprint(f'{loss} now')\nloss.backward()", "does something else"),
        ("loss = model(x).mean()\nvalue = loss.item()\nloss = loss * value\nloss.backward()", "does something else"),
        ("loss = model(x).mean()\nprint(loss.item())\nloss = loss * 2\nloss.backward()", "does something else"),
        ("out = model(x)\nbest = out.max().item()\nx = model(out)\nx.mean().backward()", "does something else"),
        ("out = model(x)\nbest = out.max().item()\nloss = out.relu_().mean()\nloss.backward()", "does something else"),
        ("out = model(x)\ntotal += out.mean().item()\nloss = out.mean() * total\nloss.backward()", "something else"),
        ("out = model(x)\nnorm = w.grad.norm().item()\nloss = out.mean()\nloss.backward()", "waits for the device"),
        ("out = model(x)\nmeter.update(model)\nloss = out.mean()\nloss.backward()", "does something else"),
        ("out = model(x)\ntotal += out.mean().item(); a = 1\nloss = out.mean()\nloss.backward()", "shares a line"),
        ("loss = model(x).mean() * float(y.sum())\nloss.backward()", "waits for the device"),
        ("loss = logger.log('step', model(x)).mean()\nloss.backward()", "tells somebody"),
        ("if len(x):\n    with torch.no_grad():\n        model(x).mean().backward()", "more than the loop"),
        ("try:\n    model(x).mean().backward()\nexcept RuntimeError:\n    pass", "more than the loop"),
        (
            "out = model(x)\nif y:\n    extra = out.std()\nelse:\n    out = out * 2\nout.mean().backward()\nlog(extra)",
            "extra",
        ),
        ("loss = model(x).mean() + random.random()\nloss.backward()", "draws on the host"),
        ("loss = model(x).mean() + torch.rand(2).cuda()\nloss.backward()", "draws on the host"),
        ("for one in x:\n    out = model(one)\nout.mean().backward()", "whether out is set"),
        ("loss = model(x).mean()\nfor one in y:\n    z = loss\nloss.backward()\nlog(z)", "whether z is set"),
        ("loss = model(x).mean()\nfor self.one in y:\n    loss += self.one\nloss.backward()", "other code may see"),
        ("loss = model(x).mean()\nfor one in y:\n    print(one)\nloss.backward()", "does something else"),
        ("for one in x:\n    out = model(one)\nelse:\n    pass\nmodel(y).mean().backward()\nlog(out)", None),
        ("loss = sum([float(one) for one in model(x)])\nloss.backward()", "waits for the device"),
        ("loss = model(x).mean()\nloss.backward(retain_graph=True)", "told how to go"),
        ("kept['out'] = model(x)\nkept['out'].mean().backward()", "other code may see"),
        ("kept.out = model(x)\nkept.out.mean().backward()", "other code may see"),
        ("with torch.no_grad():\n    x = model(x)\nloss = x.mean()\nloss.backward()", "other than autocast"),
        ("x += model(y)\nx.mean().backward()", "changed in place"),
        ("loss = other(x)\nloss.backward()", "calls a model"),
        ("out = model(x); loss = out.mean()\nloss.backward()", None),
        ("log(x); out = model(x)\nout.mean().backward()", "shares a line"),
        ("loss = model(x).mean()\nloss.backward()\nlocals()", "another way"),
        ("out = model(x)\nout.mean().backward()\ntorch.autograd.grad(out.sum(), y)", "another pass goes back"),
    ],
)
def test_passes_that_python_takes_part_in(body: str, reason: str | None) -> None:
    one = found(body)
    if reason is None:
        assert isinstance(one, Pass)
    else:
        assert not isinstance(one, Pass) and reason in str(one[1])


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n    state = y\nif y:\n    out = model(x, state)\nelse:\n    out = model(x)\nout.backward()",
        "if x:\n    state = y\nelse:\n    state = model(state)\nmodel(state).mean().backward()",
        "for one in y:\n    state = model(one, state)\nstate.mean().backward()",
    ],
)
def test_names_that_may_not_be_set_where_a_pass_begins(body: str) -> None:
    one = found(body)
    assert isinstance(one, Pass)
    given = dict(zip(one.inputs, one.given, strict=True))
    assert given.pop("state") == 'locals().get("state")' and all(name == own for name, own in given.items())
    for around in ("global state", "try: state\n    except NameError: pass"):
        head = f"def train(loader):\n    {around}\n    for x, y in loader:\n{{}}\n        optimizer.step()\n"
        assert not isinstance(found(body, head), Pass)


@pytest.mark.parametrize("kind", ["async def train(loader):", "def train(loader):\n    yield 1"])
def test_functions_that_are_left_on_the_way(kind: str) -> None:
    head, _, rest = kind.partition("\n")
    body = f"{head}\n{rest}\n    for x, y in loader:\n{{}}\n        optimizer.step()\n"
    assert "generator" in str(found("model(x).mean().backward()", body)[1])


def test_a_trainer_keeps_its_loss() -> None:
    text = """
class Trainer:
    def run(self, draws, device):
        model = self.model
        model.train()
        while True:
            x, y = [one.to(device) for one in next(draws)]
            logits, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
"""
    (one,) = straight_passes(Source(text))
    assert isinstance(one, Pass) and one.inputs == ("x", "y") and one.results == ("self.loss",)
    carried = text.replace("model(x, y)", "model(x, self.loss)")
    (left,) = straight_passes(Source(carried))
    assert not isinstance(left, Pass) and "from step to step" in str(left[1])


@pytest.mark.parametrize(
    "given",
    [
        "model: torch.nn.Module): self.net = model",
        "model: torch.nn.Module): self.net = torch.nn.DataParallel(model.cuda())",
        "net): self.net = net.to('cuda'); self.optimizer = torch.optim.SGD(net.parameters())",
    ],
)
def test_a_trainer_that_is_given_its_model(given: str) -> None:
    text = f"""
import torch
class Trainer:
    def __init__(self, {given}

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = (self.net(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()

    def train(self, loader):
        for x, y in loader:
            self.step(x, y)
"""
    (one,) = straight_passes(Source(text))
    assert isinstance(one, Pass) and one.inputs == ("self", "x", "y")
    (left,) = straight_passes(Source(text.replace("self.net = ", "self.other = ")))
    assert not isinstance(left, Pass) and "calls a model" in str(left[1])


def test_a_function_for_one_step() -> None:
    text = (
        HEAD
        + """
def step(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

for x, y in loader:
    step(x, y)
"""
    )
    (one,) = straight_passes(Source(text))
    assert isinstance(one, Pass) and one.inputs == ("x", "y") and one.results == ("loss",)


def test_tracebacks_show_the_scripts_own_lines() -> None:
    from hotlap.catalogue import find

    text = (
        HEAD
        + """
for x, y in [(1, 2)]:
    optimizer.zero_grad()
    loss = model(x).mean()  # fails here
    loss.backward()
    optimizer.step()
"""
    )
    result = rewritten(Source(text), [(find("captured-pass"), None)], unsafe=True, doubtful=True)
    assert result.techniques
    old, new = text.split("\n"), result.text.split("\n")
    moved = [number for number, line in enumerate(new, 1) if "fails here" in line]
    assert [old[result.lines[number] - 1].strip() for number in moved] == ["loss = model(x).mean()  # fails here"]
    (call,) = [number for number, line in enumerate(new, 1) if "recorded(one_pass" in line]
    assert old[result.lines[call] - 1].strip() == "loss.backward()"


def several(body: str) -> list[Pass | str]:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    passes = straight_passes(Source(f"{HEAD}\nfor x, y in loader:\n{lines}\n    optimizer.step()\n"))
    return [one if isinstance(one, Pass) else str(one[1]) for one in passes]


ADVERSARIES = """
optimizer.zero_grad()
fake = model(x)
loss = judge(fake).mean()
loss.backward()
optimizer.step()
for_judge.zero_grad()
told = (judge(y) - judge(fake.detach())).mean()
told.backward()
for_judge.step()
"""


def test_passes_of_two_networks_in_turns() -> None:
    first, second = several(ADVERSARIES)
    assert isinstance(first, Pass) and (first.number, first.inputs, first.results) == (0, ("x",), ("fake",))
    assert isinstance(second, Pass) and (second.number, second.inputs, second.results) == (1, ("y", "fake"), ())
    assert second.given == ("y", "fake.detach()")


@pytest.mark.parametrize(
    "body",
    [
        ADVERSARIES.replace("fake.detach()", "fake"),
        ADVERSARIES.replace("for_judge.zero_grad()", "both = fake + 1").replace("fake.detach()", "both"),
        ADVERSARIES.replace("for_judge.zero_grad()", "kept.append(fake)").replace("fake.detach()", "kept[0]"),
        ADVERSARIES.replace("for_judge.zero_grad()", "kept['fake'] = fake").replace("fake.detach()", "kept['fake']"),
        ADVERSARIES.replace("fake.detach()", "fake.cpu()"),
        ADVERSARIES.replace("for_judge.zero_grad()", "state['a']['fake'] = fake").replace(
            "fake.detach()", "state['a']['fake']"
        ),
        ADVERSARIES.replace("for_judge.zero_grad()", "kept.fake = fake").replace("fake.detach()", "kept.all()"),
        ADVERSARIES.replace("for_judge.zero_grad()", "pool.push(fake)").replace("fake.detach()", "x"),
        ADVERSARIES.replace("judge(fake.detach())).mean()", "(again := fake)).mean()"),
        ADVERSARIES.replace("for_judge.zero_grad()", "for one in [fake]:\n    other = one").replace(
            "fake.detach()", "other"
        ),
        ADVERSARIES.replace("for_judge.zero_grad()", "with given(fake) as one:\n    pass").replace(
            "fake.detach()", "one"
        ),
        ADVERSARIES.replace("model(x)", "model(x, told)").replace("optimizer.step()", "pass", 1) + "fake = fake + 1",
    ],
)
def test_a_pass_that_another_goes_back_through_is_left_alone(body: str) -> None:
    found = several(body)
    assert any(isinstance(one, str) and "goes back through" in one for one in found), found


def test_a_name_that_stands_for_something_else_by_then() -> None:
    body = ADVERSARIES.replace("told", "loss").replace("fake.detach()", "x")
    assert all(isinstance(one, Pass) for one in several(body))


def test_what_clears_gradients_may_be_a_function() -> None:
    text = (
        HEAD
        + """
def reset_grad():
    optimizer.zero_grad()
    for_judge.zero_grad()

def forget():
    optimizer.zero_grad()
    seen.clear()

for x, y in loader:
    loss = model(x).mean()
    reset_grad()
    loss.backward()
    optimizer.step()

for x, y in loader:
    loss = model(x).mean()
    forget()
    loss.backward()
    optimizer.step()
"""
    )
    first, second = straight_passes(Source(text))
    assert isinstance(first, Pass) and not isinstance(second, Pass)


SHOWING = (
    HEAD
    + """
def train(loader, losses, total):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)  # how far off
        total += loss.item()
        if number % 10 == 0:
            print(f"{number}: {loss:.4f}", total / (number + 1))
        best = out.max().item()
        losses.append(best * 2)

        # and back
        loss = loss / 4
        loss.backward()
        optimizer.step()
"""
)


SHOWN_AFTERWARDS = """\
    for number, (x, y) in enumerate(loader):
        def one_pass(x, y):
            optimizer.zero_grad()
            out = model(x)
            loss = F.mse_loss(out, y)  # how far off
            optimizer.zero_grad(
                set_to_none=True)
            loss.backward()
            return out, loss
        out, loss = recorded(one_pass, x, y)
        with reading_early(one_pass, total, loss):
            total += loss.item()
        if number % 10 == 0:
            print(f"{number}: {loss:.4f}", total / (number + 1))
        best = out.max().item()
        losses.append(best * 2)

        # and back
        optimizer.step()
"""


def test_what_only_shows_something_comes_after_the_pass() -> None:
    text = SHOWING.replace("        loss = loss / 4\n", "        optimizer.zero_grad(\n            set_to_none=True)\n")
    (one,) = straight_passes(Source(text))
    assert isinstance(one, Pass) and one.results == ("out", "loss") and len(one.late) == 2
    from hotlap.catalogue import find

    result = rewritten(Source(text), [(find("captured-pass"), None)], unsafe=True, doubtful=True)
    old, new = text.split("\n"), result.text.split("\n")
    start = new.index("    for number, (x, y) in enumerate(loader):")
    assert "\n".join(new[start:]) == SHOWN_AFTERWARDS
    for number, line in enumerate(new, 1):
        if line.strip() in ("loss.backward()", "set_to_none=True)", "losses.append(best * 2)"):
            assert old[result.lines[number] - 1].strip() == line.strip()


@pytest.mark.parametrize(
    ("check", "is_recorded"),
    [
        ("if torch.isnan(loss):\n    raise ValueError('no number')", True),
        ("assert not torch.isnan(loss).any(), 'no number'", True),
        ("value = loss.item()\nif not math.isfinite(value):\n    print(f'{value:.2f}')\n    sys.exit(1)", True),
        ("if torch.isnan(loss):\n    continue", False),
        ("if loss > 5:\n    raise Large(loss.item())", False),
        ("if loss > 5:\n    raise ValueError(loss)", False),
        ("assert loss < 5, loss", False),
        ("assert loss < 5\nloss = loss.mean()", False),
        ("assert loss < 5\nloss = loss + model(x).mean()", True),  # the pass begins after it
    ],
)
def test_checks_that_may_end_the_training_come_before_the_update(check: str, is_recorded: bool) -> None:
    one = found(f"import math, sys\nloss = F.mse_loss(model(x), y)\n{check}\nloss.backward()")
    assert isinstance(one, Pass) is is_recorded
    assert not is_recorded or [ast.unparse(late) for late in one.late] in ([], ["loss.backward()"])


def test_what_the_pass_goes_on_with_keeps_its_place() -> None:
    (one,) = straight_passes(Source(SHOWING))
    assert not isinstance(one, Pass), "the loss that is shown is not the one that goes back"


BEFORE_LOOP = """
def judged(fake):
    loss = judge(fake).mean()
    loss.backward()
    for_judge.step()

def train(loader):
    for x, y in loader:
        for part in x:
            optimizer.zero_grad()
            fake = model(part)
            loss = fake.mean()
            loss.backward()
            optimizer.step()
        {after}
"""


@pytest.mark.parametrize(
    ("after", "is_left"),
    [
        ("print(loss.item(), fake.shape)", False),
        ("judged(fake.detach())", False),
        ("judged(fake)", True),
        ("steps = {'judge': judged}\n        steps['judge'](fake)", True),
        ("judge(fake).mean().backward()", True),
        ("return fake", True),
    ],
)
def test_results_are_followed_beyond_their_loop(after: str, is_left: bool) -> None:
    found = list(straight_passes(Source(HEAD + BEFORE_LOOP.format(after=after))))
    mine = [one for one in found if isinstance(one, Pass) and "part" in one.inputs]
    assert (not mine) is is_left, found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def rate():\n    return beta\n\nfor x, y in loader:\n    out = model(x)\n    beta = 1\n"
         "    loss = out.mean() * rate()\n    loss.backward()\n    optimizer.step()\n", "defined elsewhere"),
        ("for x, y in loader:\n    loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n"
         "    losses.append(lambda: loss.item())\n", "defined elsewhere"),
        ("for x, y in loader:\n    out = model(x)\n    noise = torch.rand(2, requires_grad=True)\n"
         "    loss = (out + noise).mean()\n    loss.backward()\n    optimizer.step()\n", "gets a gradient"),
        ("for x, y in loader:\n    out = model(x)\n    loss = out.mean() if stopped.is_set() else out.std()\n"
         "    loss.backward()\n    optimizer.step()\n", "asks somebody"),
        ("def run():\n    for x, y in loader:\n        model(x).mean().backward()\n        optimizer.step()\n"
         "        print('{x}'.format(**vars()))\n", "another way"),
    ],
)  # fmt: skip
def test_names_and_decisions_that_others_have_a_part_in(text: str, reason: str) -> None:
    (one,) = straight_passes(Source(HEAD + text))
    assert not isinstance(one, Pass) and reason in str(one[1]), one


def test_a_name_that_may_be_nothing_is_not_asked_to_detach() -> None:
    text = "for x, y in loader:\n    out = model(x)\n    loss = out.mean() + (y.detach().mean() if model.deep else 0)\n"
    (one,) = straight_passes(Source(HEAD + text + "    loss.backward()\n    optimizer.step()\n"))
    assert isinstance(one, Pass) and one.given == ("x", "y")


def test_random_numbers_are_drawn_where_the_script_wants_all_tensors() -> None:
    body = "optimizer.zero_grad()\nz = torch.randn(2)\nmodel(z).mean().backward()"
    text = "def train(loader):\n    for x, y in loader:\n{}\n        optimizer.step()\n"
    assert found(body, text).inputs == ("z",)
    assert found(body, "torch.set_default_device('cuda')\n" + text).inputs == ()
