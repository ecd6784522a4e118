"""`with hotlap.applied(...)`: in force inside the block, gone without a trace after it, and honest about which is
which."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Dataset
from waiting import PATIENCE_SECONDS

import hotlap
from hotlap import plan as plans
from hotlap.applying import named
from hotlap.errors import HotlapError
from hotlap.plan import Entry, Plan

NAMES = "loader-workers,channels-last,fused-optimizer,sample-cache,mixed-precision"


def test_settings_by_name() -> None:
    (workers, fused) = named("loader-workers:num_workers=3, fused")
    assert workers.setting == {"num_workers": 3, "everywhere": True, "persistent_workers": True}
    assert fused.setting == {"kind": "fused"}
    assert named("loader-workers")[0].setting == {"num_workers": 4, "persistent_workers": True}
    assert named("loader-workers:num_workers=0")[0].setting == {"num_workers": 0, "everywhere": True}
    assert [named(f"fast-jpeg:scaled={word}")[0].setting["scaled"] for word in ("true", "False")] == [True, False]
    (workers, cache) = named("loader-workers:num_workers=8:replacing=2:persistent_workers=false,cache:hold=auto")
    assert workers.setting == {"num_workers": 8, "replacing": 2, "persistent_workers": False}
    assert cache.setting == {"hold": "auto"}
    wrong = (
        "loader-workers:workers=3",
        "loader-workers:num_workers",
        "loader-workers:num_workers=many",
        "fused:a=1",
        "fast-jpeg:scaled=maybe",
    )
    for name in wrong:
        with pytest.raises(HotlapError, match=name.split(":")[0]):
            named(name)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("loader-workers:speed=1", "takes num_workers=4, prefetch_factor=8, .* joined by colons"),
        ("loader-workers:replacing=two", "replacing is a whole number, 0 or more, as in replacing=2"),
        ("cudnn-benchmark:on=1", "takes no settings"),
        ("loader-workers:num_workers=8,replacing=2", "as in loader-workers:num_workers=8:replacing=2"),
        ("replacing=2", "as in NAME:replacing=2"),
        ("fused,fused-optimizer:kind=foreach", "fused-optimizer is named twice"),
        (" , ", "no technique is named: `hotlap explain` lists them"),
        ("abracadabra", "`hotlap explain` lists them all"),
    ],
)
def test_what_is_named_wrongly_is_told_how(names: str, words: str) -> None:
    with pytest.raises(HotlapError, match=words):
        named(names)


VALUES = [  # that a setting does not take, and what is said instead of trying
    ("compiled-model:mode=foo", "mode is default, reduce-overhead or max-autotune, as in mode=default"),
    ("compiled-model:part=x", "part is model or block, as in part=model"),
    ("loader-workers:prefetch_factor=0", "prefetch_factor is a whole number, 1 or more, as in prefetch_factor=8"),
    ("loader-workers:num_workers=-1", "num_workers is a whole number, from 0 to 1024, as in num_workers=4"),
    ("cpu-threads:threads=100000", "threads is a whole number, from 0 to 1024, as in threads=0"),
    ("mixed-precision:dtype=float64", "dtype is bfloat16 or float16, as in dtype=bfloat16"),
    ("resident-dataset:on=moon", "on is device, as in on=device"),
    ("fused-optimizer:kind=fuse", "kind is fused, foreach, captured or compiled, as in kind=fused"),
    ("fast-jpeg:scaled", "scaled is true or false, as in scaled=False"),
]


@pytest.mark.parametrize(("names", "words"), VALUES)
def test_a_value_that_a_setting_does_not_take_is_no_silent_default(names: str, words: str) -> None:
    with pytest.raises(HotlapError, match=re.escape(f"{names!r} is not understood: {words}")):
        named(names)


WRITTEN = [  # into a plan, where values have types of their own
    ("loader-workers", {"num_workers": -1}, "num_workers is a whole number, from 0 to 1024"),
    ("loader-workers", {"num_workers": True}, "num_workers is a whole number, from 0 to 1024"),
    ("fast-jpeg", {"scaled": 1}, "scaled is true or false"),
    ("compiled-model", {"mode": 3}, "mode is default, reduce-overhead or max-autotune"),
    ("compiled-model", {"speed": 3}, "compiled-model: it takes mode=default, part=model"),
]


@pytest.mark.parametrize(("technique", "setting", "words"), WRITTEN)
def test_a_value_in_a_plan_is_read_like_one_by_hand(tmp_path: Path, technique: str, setting: dict, words: str) -> None:
    entries = [Entry(technique, setting, 1.2)]
    plans.write(str(tmp_path / "train.py"), Plan("train.py", "", "", "", "", "", "", 1.5, 1.4, 1.6, entries))
    with (
        pytest.raises(HotlapError, match=re.escape(words) + ".* mend it, or delete it and tune again"),
        hotlap.applied(tmp_path / plans.FILE),
    ):
        pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)
        self.was_nhwc = False

    def forward(self, x):
        self.was_nhwc = is_nhwc(x)
        return self.head(self.body(x).relu().mean((2, 3)))


class Images(Dataset):
    """Makes its samples, so that workers would have something to do."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int):
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i)), i % 2


def is_nhwc(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def built() -> tuple[Net, torch.optim.Optimizer, DataLoader]:
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(Images(), batch_size=4)


def train(model: Net, optimizer: torch.optim.Optimizer, loader: DataLoader) -> dict[str, torch.Tensor]:
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return copy.deepcopy(model.state_dict())


def attributes() -> dict[str, object]:
    """Everything a technique could have changed, by identity."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    owners = [*kinds, DataLoader, nn.Module, torch.Tensor, torch, torch.autograd, torch.nn.functional, torch.jit]
    owners += [sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter]
    seen: dict[str, object] = {
        f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in vars(owner).items()
    }
    for module in (torch_module, torch_optimizer):
        hooks = {name: value for name, value in vars(module).items() if name.startswith("_global_")}
        seen |= {name: list(value) if hasattr(value, "keys") else value for name, value in hooks.items()}
    seen["finders"] = list(map(id, sys.meta_path))
    return seen


def plan_file(folder: Path, *scripts: str, technique: str = "fused-optimizer") -> Path:
    for script in scripts:
        (folder / script).write_text("")
        entries = [Entry(technique, {}, 1.1)]
        plan = Plan(script, "x", "", "2026-01-01", "a machine", "2.13.0", "cpu", 2.0, 1.9, 2.1, entries)
        plans.write(str(folder / script), plan)
    return folder / "hotlap.toml"


def test_inside_it_is_fast_and_trains_the_same() -> None:
    plain = train(*built())
    with hotlap.applied("fused-optimizer,channels-last") as on:
        assert on.applied == ["fused-optimizer (kind fused)", "channels-last"] and on.withdrawn == []
        model, optimizer, loader = built()
        fast = train(model, optimizer, loader)
        assert optimizer.param_groups[0]["fused"] is True
        assert model.was_nhwc and not is_nhwc(model.body.weight)
    assert list(fast) == list(plain)
    for name, value in plain.items():
        torch.testing.assert_close(fast[name].contiguous(), value, rtol=1e-4, atol=1e-5)
    model(next(iter(loader))[0])
    assert not model.was_nhwc and not is_nhwc(model.body.weight), "and the model is given back as it was"


def test_afterwards_nothing_is_left() -> None:
    before = attributes()
    with hotlap.applied(NAMES) as on:
        assert len(on.applied) == 5
        assert attributes() != before, "or this test sees nothing"
        model, optimizer, loader = built()
        train(model, optimizer, loader)
    assert attributes() == before
    assert "_compiled_call_impl" not in vars(model)
    assert built()[1].param_groups[0]["fused"] is None


def test_an_exception_passes_and_all_is_undone() -> None:
    before = attributes()
    with pytest.raises(ZeroDivisionError), hotlap.applied(NAMES):
        train(*built())
        raise ZeroDivisionError
    assert attributes() == before
    with hotlap.applied("fused") as on:  # and the way is free again
        assert on.applied == ["fused-optimizer (kind fused)"]


def test_what_was_built_before_is_not_touched() -> None:
    model, optimizer, loader = built()
    with hotlap.applied("fused-optimizer,channels-last,loader-workers"):
        train(model, optimizer, loader)
        assert not model.was_nhwc and not is_nhwc(model.body.weight)
        assert optimizer.param_groups[0]["fused"] is None and loader.num_workers == 0
        new = built()
        assert new[2].num_workers > 0 and new[1].param_groups[0]["fused"] is True
        new[0](torch.randn(2, 3, 8, 8)), new[0](torch.randn(2, 3, 8, 8))
        assert new[0].was_nhwc, "what is built inside is a root, also while older ones train beside it"


def test_nested_use_is_one_sentence_and_harms_nothing() -> None:
    with hotlap.applied("fused"):
        with pytest.raises(HotlapError, match="already in force: leave the outer"), hotlap.applied("channels-last"):
            pass
        assert built()[1].param_groups[0]["fused"] is True, "the outer one stays"
    assert built()[1].param_groups[0]["fused"] is None


@pytest.mark.parametrize("names", ["fused, nhwc", ["fused-optimizer", "channels_last"], ("fused", "memory_format")])
def test_names_as_for_run(names) -> None:
    with hotlap.applied(names) as on:
        assert on.applied == ["fused-optimizer (kind fused)", "channels-last"]


def test_an_unknown_name_is_one_sentence() -> None:
    before = attributes()
    with pytest.raises(HotlapError, match="did you mean fused-optimizer"), hotlap.applied("fussed-optimiser"):
        pass
    assert attributes() == before


def test_a_technique_that_cannot_be_applied_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.catalogue.fused_optimizer import FusedOptimizer

    def broken(self, patch, setting):
        patch.set(torch, "planted", 1)
        raise RuntimeError("no luck")

    monkeypatch.setattr(FusedOptimizer, "apply", broken)
    with hotlap.applied("fused,channels-last") as on:
        assert on.applied == ["channels-last"] and "no luck" in on.withdrawn[0]
        assert not hasattr(torch, "planted")


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_needs_a_gpu_is_applied_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with hotlap.applied("tf32,fused") as on:
        assert on.applied == [*(["tf32-matmul"] if gpus else []), "fused-optimizer (kind fused)"]
        assert on.withdrawn == ([] if gpus else ["tf32-matmul: needs a GPU, and torch sees none here"])


def test_what_gives_up_on_the_way_is_no_longer_applied() -> None:
    before = torch.get_num_threads()
    with hotlap.applied("cpu-threads,fused") as on:
        assert len(on.applied) == 2
        torch.set_num_threads(before)
        assert on.applied == ["fused-optimizer (kind fused)"] and len(on.withdrawn) == 1


def test_plans_by_path_and_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan_file(tmp_path, "train.py")
    with hotlap.applied(str(path)) as on:
        assert on.applied == ["fused-optimizer (kind fused)"]
    with hotlap.applied(path) as on:
        assert on.applied == ["fused-optimizer (kind fused)"]
    monkeypatch.chdir(tmp_path)
    with hotlap.applied() as on:  # the only plan there is, whoever is running
        assert on.applied == ["fused-optimizer (kind fused)"]


def test_several_plans_and_none_for_this_script(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "one.py", "two.py")
    with pytest.raises(HotlapError, match=r"holds plans for one\.py, two\.py"), hotlap.applied(path):
        pass


def test_no_plan_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for plan in (None, "hotlap.toml"):
        with pytest.raises(HotlapError, match=r"there is no plan in .*hotlap tune"), hotlap.applied(plan):
            pass


def python(*arguments: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, **more
    )


def test_a_script_finds_its_own_plan_from_anywhere(tmp_path: Path) -> None:
    """Also when torch comes only inside the block."""
    plan_file(tmp_path, "other.py", technique="channels-last")
    plan_file(tmp_path, "train.py")
    text = (
        "import sys, hotlap\nassert 'torch' not in sys.modules\nwith hotlap.applied() as on:\n"
        "    assert on.applied == []\n    import torch\n    print(on.applied)\n"
    )
    (tmp_path / "train.py").write_text(text)
    done = python(str(tmp_path / "train.py"), cwd=Path("/"))
    assert done.stdout == "['fused-optimizer (kind fused)']\n", done.stderr


def test_in_a_notebook(tmp_path: Path) -> None:
    """A cell is code without a file, in a process whose __main__ has none."""
    plan_file(tmp_path, "train.py")
    cell = (
        "import torch, hotlap\nwith hotlap.applied() as on:\n"
        "    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)\n"
        "    print(on.applied, optimizer.param_groups[0]['fused'])\n"
    )
    text = f"import sys\ndel sys.modules['__main__'].__dict__['__file__']\nexec({cell!r}, {{'__name__': '__main__'}})\n"
    (tmp_path / "kernel.py").write_text(text)
    done = python(str(tmp_path / "kernel.py"), cwd=tmp_path)
    assert done.stdout == "['fused-optimizer (kind fused)'] True\n", done.stderr


def test_importing_hotlap_is_cheap_and_applied_is_a_function(tmp_path: Path) -> None:
    code = (
        "import sys, hotlap\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('hotlap.')])\n"
        "import hotlap.applying\nprint(callable(hotlap.applied), hasattr(hotlap, 'apply'), 'torch' in sys.modules)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\nTrue False False\n", done.stderr
