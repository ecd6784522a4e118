"""Real, tiny training scripts, looked into at a few of their steps: which line keeps tensors alive, and which not."""

from __future__ import annotations

import gc
import runpy
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch

from hotlap.observe.joints import Joints
from hotlap.observe.leaks import Leaks
from hotlap.observe.patch import Patch
from hotlap.observe.watch import Watch

BEFORE = """
import collections
import types
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
"""
LOOKS = (4, 7, 11, 16)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch) -> None:
    monkeypatch.setattr("hotlap.observe.leaks._SECONDS", 20.0)  # a busy machine must not change what is found


@pytest.fixture
def grows(tmp_path):
    """`grows(script, **files)`: what is found to grow, as (file, line, holder, why), with the script's own marks."""

    def run(script: str, **files: str):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        path = tmp_path / "train.py"
        path.write_text(BEFORE + textwrap.dedent(script))
        patch, leaks, modules = Patch(Joints()), Leaks(), set(sys.modules)
        roots: list[torch.nn.Module] = []
        watch = Watch(patch, on_step=lambda step: leaks.look(step, roots) if step in LOOKS else None)
        patch.at(patch.joints.root_found, roots.append)
        sys.path.insert(0, str(tmp_path))
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.path.remove(str(tmp_path))
            patch.undo()
        found = leaks.facts()
        for name in set(sys.modules) - modules:
            if name in files:
                del sys.modules[name]
        assert watch.steps > LOOKS[-1]
        return found

    return run


def marked(path: Path) -> int:
    (line,) = [n for n, text in enumerate(path.read_text().splitlines(), 1) if "# HERE" in text]
    return line


def loop(body: str, before: str = "", backward: str = "loss.backward()") -> str:
    """A function that trains, with lines of the test before and in its loop."""
    rows = ["def main():", *(f"    {row}" for row in before.splitlines()), "    for x, y in DataLoader(data, 2):"]
    rows += ["        out = model(x)", "        loss = (out - y).square().mean()"]
    rows += [f"        {row}" for row in ("optimizer.zero_grad()", backward, "optimizer.step()")]
    return "\n".join([*rows, *(f"        {row}" for row in body.splitlines()), "main()"])


FOUND = {
    "local list": ("losses", loop("losses.append(loss)  # HERE", "losses = []")),
    "global list": ("losses", "losses = []\n" + loop("losses.append(loss)  # HERE")),
    "global accumulator": ("total", "total = 0\n" + loop("total += loss  # HERE", "global total")),
    "activations": ("outputs", loop("outputs.append(out)  # HERE", "outputs = []")),
    "deque": ("kept", loop("kept.append(loss)  # HERE", "kept = collections.deque()")),
    "appendleft": ("kept", loop("kept.appendleft(loss)  # HERE", "kept = collections.deque()")),
    "insert": ("kept", loop("kept.insert(0, loss)  # HERE", "kept = []")),
    "tuples": ("history", loop("history.append((1, loss))  # HERE", "history = []")),
    "dicts": ("history", loop('history.append({"loss": loss})  # HERE', "history = []")),
    "lists": ("history", loop("history.append([1, loss])  # HERE", "history = []")),
    "list of lists": ("history[0]", loop("history[0].append(loss)  # HERE", "history = [[], []]")),
    "added lists": ("losses", loop("losses = losses + [loss]  # HERE", "losses = []")),
    "preallocated": (
        "losses[step]",
        loop("losses[step] = loss  # HERE\nstep += 1", "losses = [None] * 99\nstep = 0"),
    ),
    "dict by step": ("log[step]", loop("log[step] = loss  # HERE\nstep += 1", "log = {}\nstep = 0")),
    "dict of lists": (
        'log["loss"]',
        loop('log["other"].append(y)\nlog["loss"].append(loss)  # HERE', 'log = {"loss": [], "other": []}'),
    ),
    "defaultdict": ('log["loss"]', loop('log["loss"].append(loss)  # HERE', "log = collections.defaultdict(list)")),
    "setdefault": (
        'log.setdefault("loss", [])',
        loop('log.setdefault("loss", []).append(loss)  # HERE', "log = {}"),
    ),
    "running sum": ("total", loop("total += loss  # HERE", "total = 0")),
    "running sum, spelled out": ("total", loop("total = total + loss  # HERE", "total = 0")),
    "running sum in place": ("total", loop("total.add_(loss)  # HERE", "total = torch.zeros(())")),
    "running mean": ("mean", loop("mean = 0.9 * mean + 0.1 * loss  # HERE", "mean = 0")),
    "sum in a dict": ('stats["loss"]', loop('stats["loss"] += loss  # HERE', 'stats = {"loss": 0}')),
    "namespace": (
        "state.losses",
        loop("state.losses.append(loss)  # HERE", "state = types.SimpleNamespace(losses=[])"),
    ),
    "closure": (
        "kept",
        "def make():\n    kept = []\n    def keep(loss):\n        kept.append(loss)  # HERE\n    return keep\n"
        + loop("keep(loss)", "keep = make()"),
    ),
    "another name": (
        "kept",
        "def keep(kept, loss):\n    kept.append(loss)  # HERE\n" + loop("keep(kept, loss)", "kept = []"),
    ),
    "attribute": (
        "self.history",
        "class Log:\n    def __init__(self):\n        self.history = []\n"
        "    def add(self, loss):\n        self.history.append(loss)  # HERE\n" + loop("log.add(loss)", "log = Log()"),
    ),
    "slot": (
        "self.history",
        "class Log:\n    __slots__ = ('history', 'unset')\n    def __init__(self):\n        self.history = []\n"
        "    def add(self, loss):\n        self.history.append(loss)  # HERE\n" + loop("log.add(loss)", "log = Log()"),
    ),
    "class attribute": (
        "self.history",
        "class Log:\n    history = []\n"
        "    def add(self, loss):\n        self.history.append(loss)  # HERE\n" + loop("log.add(loss)", "log = Log()"),
    ),
    "meter": (
        "self.total",
        "class Meter:\n    total = 0\n    last = None\n    def add(self, loss):\n        self.last = loss\n"
        "        self.total += loss  # HERE\n        self.mean = self.total / 2\n" + loop("m.add(loss)", "m = Meter()"),
    ),
    "module of its own": (
        "self.kept",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.kept = []\n"
        "        self.inner = nn.Linear(8, 1)\n    def forward(self, x):\n        out = self.inner(x)\n"
        "        self.kept.append(out)  # HERE\n        return out\n"
        "model = nn.Sequential(nn.Linear(8, 8), Net())\n" + loop("pass"),
    ),
    "objects": (
        "history",
        "class Record:\n    def __init__(self, loss):\n        self.loss = loss\n"
        + loop("history.append(Record(loss))  # HERE", "history = []"),
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_line_that_keeps_tensors_is_found(grows, tmp_path, case) -> None:
    holder, script = FOUND[case]
    (growth,) = grows(script)
    assert (growth.path, growth.line, growth.holder) == (
        str(tmp_path / "train.py"),
        marked(tmp_path / "train.py"),
        holder,
    )
    assert "graph" in growth.why
    assert growth.tensors == 1 or growth.tensors >= 16


CACHED = """
class Cached({base}):
    def __init__(self):
        self.cache = {{}}
    def __len__(self):
        return 64
    def __getitem__(self, i):
        self.cache[i] = torch.randn(999)
        return self.cache[i][:8], self.cache[i][:1]
data = Cached()
"""
NOT_FOUND = {
    "numbers": loop("losses.append(loss.item())", "losses = []"),
    "a number summed": loop("total += loss.item()", "total = 0"),
    "small detached": loop("losses.append(loss.detach())\ntotal += loss.detach()", "losses = []\ntotal = 0"),
    "bounded": loop("kept.append(loss)", "kept = collections.deque(maxlen=10)"),
    "the last ones": "class Log: pass\n"
    + loop("log.loss = loss\nlog.out = (loss, out)\nlast = [loss, out]", "log = Log()"),
    "momentum": loop("pass", "optimizer = torch.optim.Adam(model.parameters())"),
    "lbfgs": "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)\n"
    + loop("optimizer.step(lambda: (model(x) - y).square().mean())").replace("        optimizer.step()\n", ""),
    "average": loop(
        "for k, v in model.state_dict().items():\n    ema[k] = 0.9 * ema[k] + 0.1 * v",
        "ema = {k: v.clone() for k, v in model.state_dict().items()}",
    ),
    "views of data in memory": loop("seen.append(rows[:4])", "rows = torch.randn(999, 999)\nseen = [rows]"),
    "samples a stream keeps": """
class Stream(torch.utils.data.IterableDataset):
    def __init__(self):
        self.kept = []
    def __iter__(self):
        for _ in range(64):
            self.kept.append(torch.randn(999))
            yield self.kept[-1][:8], self.kept[-1][:1]
data = Stream()
"""
    + loop("pass"),
    "cache of a data set": CACHED.format(base="torch.utils.data.Dataset") + loop("pass"),
    "cache of a data set by its looks": CACHED.format(base="object") + loop("pass"),
    "gathered and dropped": loop(
        "some.append(loss)\nif len(some) == 6:\n    some.clear()",
        "some = []",
    ),
    "summed and dropped": loop("total = total + loss\nstep += 1\nif step % 6 == 0: total = 0", "total = step = 0"),
    "rebuilt every step": loop("parts = [out[:1], out[1:], loss]"),
}


@pytest.mark.parametrize("case", NOT_FOUND)
def test_what_does_not_grow_is_not_reported(grows, case) -> None:
    assert grows(NOT_FOUND[case]) == []


def test_prefetched_batches_are_not_reported(grows) -> None:
    script = loop("pass").replace("DataLoader(data, 2)", "DataLoader(data, 2, num_workers=1, prefetch_factor=8)")
    assert grows(script) == []


def test_detached_tensors_are_worth_a_word_by_their_bytes(grows, tmp_path) -> None:
    (growth,) = grows(loop("hidden = model[0](x).detach().repeat(4, 1)\nkept.append(hidden)  # HERE", "kept = []"))
    assert growth.bytes_a_step == 4 * 2 * 64 * 4
    assert growth.line == marked(tmp_path / "train.py")
    assert "graph" not in growth.why


def test_a_graph_that_backward_has_not_freed_is_counted_with_what_it_saves(grows) -> None:
    freed, held = (
        grows(loop("outputs.append(out)", "outputs = []", backward))[0]
        for backward in ("loss.backward()", "loss.backward(retain_graph=True)")
    )
    assert freed.bytes_a_step == 2 * 4
    # two samples: 8 inputs, 64 from ReLU, and the output itself; never the weights, which are there anyway
    assert held.bytes_a_step == 2 * (8 + 64 + 1) * 4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kept.append(loss)", "every loss is kept together with its graph: append loss.item() or loss.detach()"),
        ("total += loss", "the running sum keeps every step's graph: add loss.detach()"),
        ("total = total + loss", "the running sum keeps every step's graph: add loss.detach()"),
        ("kept.append(out)", "every out is kept together with its graph: append out.detach()"),
        ("kept.append(out[:1] * 2)", "every loss is kept together with its graph: append loss.item() or loss.detach()"),
    ],
)
def test_advice_names_what_is_added(grows, line, why) -> None:
    assert [growth.why for growth in grows(loop(line, "kept, total = [], 0"))] == [why]


def test_of_several_lines_the_one_in_the_loop_that_adds_the_tensor(grows, tmp_path) -> None:
    grown = grows(
        loop(
            "if False:\n    losses.append(loss.item())\nlosses.append(loss)  # HERE", "losses = []\nlosses.append(data)"
        )
    )
    assert [growth.line for growth in grown] == [marked(tmp_path / "train.py")]


def test_where_nothing_adds_by_name_the_line_that_makes_it(grows, tmp_path) -> None:
    (growth,) = grows(loop("add = kept.append\nadd(loss)", "kept = []  # HERE"))
    assert (growth.line, growth.holder) == (marked(tmp_path / "train.py"), "kept")


def test_an_attribute_filled_from_another_file(grows, tmp_path) -> None:
    (growth,) = grows(
        "from log import Log\nlog = Log()\n" + loop("log.add(loss)"),
        log="class Log:\n    def __init__(self):\n        self.kept = []\n"
        "    def add(self, loss):\n        self.kept.append(loss)  # HERE\n",
    )
    assert (growth.path, growth.line) == (str(tmp_path / "log.py"), marked(tmp_path / "log.py"))


def test_a_look_keeps_nothing_alive() -> None:
    leaks = Leaks()
    kept = [torch.randn(3, requires_grad=True) * 2]
    alone = torch.randn(3, requires_grad=True) * 2
    box = weakref.ref(kept[0])
    local = weakref.ref(alone)
    for step in (1, 2, 3):
        kept.append(alone * 2)
        leaks.look(step, [torch.nn.Linear(2, 2)])
        assert gc.isenabled()
    assert leaks.facts()
    gc.disable()
    try:
        del alone
        kept.clear()
        assert local() is None and box() is None
    finally:
        gc.enable()


def test_a_look_calls_nothing_of_the_script() -> None:
    called = []

    class Loud(list):
        tensor = property(lambda self: called.append("property"))

        def __getattribute__(self, name):
            called.append(name)
            return super().__getattribute__(name)

        def __iter__(self):
            called.append("iter")
            return super().__iter__()

        def __len__(self):
            called.append("len")
            return super().__len__()

    class Odd(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            called.append(function)
            return super().__torch_function__(function, kinds, args, kwargs or {})

    class Thing:
        value = property(lambda self: called.append("property"))

        def __init__(self) -> None:
            self.kept = kept

        def __getattr__(self, name):
            called.append(name)
            raise AttributeError(name)

        def __eq__(self, other):
            called.append("eq")
            return False

    kept, lazy, leaks = Loud(), torch.nn.LazyLinear(3), Leaks()
    things, odd = {"thing": Thing()}, torch.randn(3, requires_grad=True).as_subclass(Odd)
    before = torch.get_rng_state()
    for step in (1, 2, 3):
        list.append(kept, torch.ones(3, requires_grad=True) * 2)
        list.append(kept, odd)
        called.clear()
        leaks.look(step, [lazy])
        assert called == []
    assert [growth.tensors for growth in leaks.facts()] == [6]
    assert torch.equal(before, torch.get_rng_state())
    assert things and lazy.has_uninitialized_params()


def test_the_offload_of_saved_tensors_is_not_undone_by_a_look() -> None:
    unpacked, leaks, kept = [], Leaks(), []
    weight = torch.randn(64, 64, requires_grad=True)
    for step in (1, 2, 3):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: unpacked.append(t) or t):
            kept.append((torch.randn(4, 64) @ weight).exp())
        leaks.look(step)
    (growth,) = leaks.facts()
    assert growth.bytes_a_step >= 2 * 4 * 64 * 4 and unpacked == []


def test_a_state_carried_over_is_a_chain_of_graphs(grows, tmp_path) -> None:
    script = """
    cell, hidden = nn.GRUCell(8, 8), torch.zeros(2, 8)
    for x, y in DataLoader(data, 2):
        {after}
        hidden = cell(x, hidden)  # HERE
        optimizer.zero_grad()
        hidden.sum().backward(retain_graph=True)
        optimizer.step()
    """
    (growth,) = grows(script.format(after="pass"))
    assert (growth.line, growth.holder) == (marked(tmp_path / "train.py"), "hidden")
    assert "carried over" in growth.why and growth.bytes_a_step > 2 * 8 * 4
    assert grows(script.format(after="hidden = hidden.detach()")) == []


def test_two_that_keep_the_same_are_both_named(grows) -> None:
    found = grows(
        loop("losses.append(loss)\nlog['train']['loss'].append(loss)", "losses, log = [], {'train': {'loss': []}}")
    )
    assert sorted(growth.holder for growth in found) == ['log["train"]["loss"]', "losses"]


def test_a_container_in_a_container_is_named_once(grows) -> None:
    (growth,) = grows(loop("log['train'][len(log['train'])] = loss", "log = {'train': {}}"))
    assert growth.holder.startswith("log[")


def test_lists_in_a_list_are_named_once_also_without_a_line(grows, tmp_path) -> None:
    (growth,) = grows(loop("for row in rows:\n    row.append(loss * 2)", "rows = [[], []]  # HERE"))
    assert (growth.holder, growth.line) == ("rows", marked(tmp_path / "train.py"))


@pytest.mark.parametrize(
    ("add", "before"),
    [
        ("kept.append(loss)", "[torch.zeros(1)] * 30_000"),
        ("kept[len(kept)] = loss", "dict.fromkeys(range(30_000), torch.zeros(1))"),
    ],
)
def test_in_a_very_large_container_what_came_last_counts(grows, tmp_path, add, before) -> None:
    (growth,) = grows(loop(f"{add}  # HERE", f"kept = {before}"))
    assert growth.tensors >= 30_000 and growth.line == marked(tmp_path / "train.py")


def test_one_look_says_nothing() -> None:
    kept, leaks = [torch.ones(3, requires_grad=True) * 2], Leaks()
    assert leaks.facts() == []
    leaks.look(5)
    leaks.look(5)
    assert leaks.facts() == [] and kept
