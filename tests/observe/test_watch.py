"""Real, tiny training loops, watched in this process: what is recorded against what is known."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import pickle
import queue
import random
import textwrap
import threading
import weakref
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from hotlap.observe.facts import loader_facts
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import Run
from hotlap.observe.watch import Watch
from hotlap.parts.generators import has_private_generator
from hotlap.records import from_json, to_json


@pytest.fixture
def watched():
    """`watched(function) -> Run`: everything attached while the function runs, and gone afterwards."""

    def run(script, **wishes) -> Run:
        patch = Patch(Joints())
        boundaries: list[int] = []
        watch = Watch(patch, on_step=boundaries.append, **wishes)
        try:
            script()
            record = watch.record()
        finally:
            patch.undo()
        assert boundaries == list(range(1, record.steps + 1))
        assert all(
            sum(parts) == pytest.approx(s) for parts, s in zip(record.step_parts, record.step_seconds, strict=True)
        )
        return record

    return run


def steps(record: Run) -> int:
    """Counted as it went and counted afterwards must be the same."""
    assert len(record.step_seconds) == record.steps
    return record.steps


def data(batches: int, **options) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(2 * batches, 3), torch.randn(2 * batches, 1)), batch_size=2, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def train(model, optimizer, loader, epochs: int = 1, after=lambda: None) -> None:
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        after()


def judge(model: nn.Module, loader, batches: int = 100) -> None:
    model.eval()
    with torch.no_grad():
        for index, batch in enumerate(loader):
            model(batch[0])
            if index + 1 == batches:
                break
    model.train()


def test_plain_loop(watched) -> None:
    model = nn.Linear(3, 1)

    def script() -> None:
        loader, valid = data(4, shuffle=True), data(2)
        train(model, sgd(model), loader, epochs=3, after=lambda: judge(model, valid))

    record = watched(script)
    assert steps(record) == 12
    assert [(loader.draws, loader.trains) for loader in record.loaders] == [(12, True), (6, False)]
    assert record.optimizers[0].updates == 12 and not record.optimizers[0].closure
    assert len(record.losses) == 12
    assert [root.kind for root in record.roots] == ["Linear"]
    assert record.evaluation_seconds > 0
    assert record.device == "cpu" and record.parameter_bytes == 16
    assert record.share("wait", "copy", "forward", "backward", "update", "sync", "other") == pytest.approx(1)


def test_trainer_class(watched) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
            self.optimizer = torch.optim.AdamW(self.model.parameters())

        def fit(self) -> None:
            for batch in self.batches():
                self.optimizer.zero_grad()
                self.step(batch).backward()
                self.optimizer.step()

        def batches(self):
            yield from data(5)

        def step(self, batch) -> torch.Tensor:
            return loss_of(self.model, batch)

    record = watched(lambda: Trainer().fit())
    assert steps(record) == 5
    assert [(root.kind, root.stands_aside) for root in record.roots] == [("Sequential", None)]
    assert record.roots[0].layers == {"Linear": 2, "ReLU": 1}


def gan() -> None:
    maker, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    first, second = sgd(maker), sgd(critic)
    for batch in data(6):
        second.zero_grad()
        (critic(maker(batch[0]).detach()).mean() - critic(batch[0]).mean()).backward()
        second.step()
        first.zero_grad()
        critic(maker(batch[0])).mean().neg().backward()
        first.step()


def test_gan(watched) -> None:
    record = watched(gan)
    assert steps(record) == 6
    assert len(record.roots) == 2
    assert sorted(optimizer.updates for optimizer in record.optimizers) == [6, 6]


@pytest.mark.parametrize("judged_first", [False, True])
def test_accumulation_with_evaluation_inside_its_branch(watched, judged_first: bool) -> None:
    def script() -> None:
        model, valid = nn.Linear(3, 1), data(2)
        optimizer = sgd(model)
        for index, batch in enumerate(data(8)):
            loss_of(model, batch).backward()
            if index % 4 == 3:
                if judged_first:
                    judge(model, valid)
                optimizer.step()
                optimizer.zero_grad()
                if not judged_first:
                    judge(model, valid)

    record = watched(script)
    assert steps(record) == 8
    assert [loader.trains for loader in record.loaders] == [False, True]
    assert record.optimizers[0].updates == 2


def test_evaluation_left_early_every_step(watched) -> None:
    def script() -> None:
        model, loader, valid = nn.Linear(3, 1), data(6), data(3)
        optimizer = sgd(model)
        next(iter(valid))
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            judge(model, valid, batches=1)

    record = watched(script)
    assert steps(record) == 6
    assert [loader.trains for loader in record.loaders] == [True, False]


def test_grad_scaler(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0)
        for batch in data(5):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch)).backward()
            scaler.step(optimizer)
            scaler.update()

    assert steps(watched(script)) == 5


def test_lbfgs(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        for batch in data(4):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)

    record = watched(script)
    assert steps(record) == 4
    assert record.optimizers[0].closure
    assert len(record.losses) > 4


def test_an_optimizer_inside_an_optimizer_is_no_closure_and_keeps_its_time(watched) -> None:
    class Slow(torch.optim.Optimizer):
        def __init__(self, inner) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None) -> None:
            self.inner.step()

    def script() -> None:
        model = nn.Linear(3, 1)
        train(model, Slow(sgd(model)), data(4))

    record = watched(script)
    assert steps(record) == 4
    assert [optimizer.closure for optimizer in record.optimizers] == [False, False]


def test_a_step_that_raised_makes_no_closure(watched) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure=None) -> None:
            raise ValueError

    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = Failing(model.parameters(), lr=0.1)
        for batch in data(3):
            loss_of(model, batch).backward()
            with pytest.raises(ValueError):
                optimizer.step()

    assert not watched(script).optimizers[0].closure


@pytest.mark.parametrize("judged_by_loader", [False, True])
def test_batches_made_by_hand(watched, judged_by_loader: bool) -> None:
    """Without a training loader a step goes from update to update, so that n updates make n - 1 whole steps."""

    def script() -> None:
        model, valid = nn.Linear(3, 1), data(2)
        optimizer, rows = sgd(model), torch.randn(20, 3)
        for index in range(7):
            chosen = torch.randint(0, 20, (4,))
            loss_of(model, (rows[chosen], torch.ones(4, 1))).backward()
            optimizer.step()
            if judged_by_loader and index in (2, 5):
                judge(model, valid)

    record = watched(script)
    assert steps(record) == 6
    assert [loader.trains for loader in record.loaders] == [False]


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(10):
            yield torch.randn(3), torch.randn(1)


def test_iterable_dataset(watched) -> None:
    model = nn.Linear(3, 1)
    record = watched(lambda: train(model, sgd(model), DataLoader(Stream(), batch_size=2), epochs=2))
    assert steps(record) == 10
    assert record.loaders[0].iterable and record.loaders[0].length is None


def test_a_sampler_decides_the_length(watched) -> None:
    class Endless(Dataset):
        def __getitem__(self, index: int):
            return torch.full((3,), float(index)), torch.zeros(1)

    model = nn.Linear(3, 1)
    record = watched(lambda: train(model, sgd(model), DataLoader(Endless(), sampler=range(6), batch_size=2)))
    assert steps(record) == 3
    assert record.loaders[0].length is None


def test_several_loaders(watched) -> None:
    def script() -> None:
        model, first, second = nn.Linear(3, 1), data(4), data(6)
        optimizer = sgd(model)
        for _ in range(2):
            for one, two in zip(first, second, strict=False):
                loss_of(model, one).backward()
                loss_of(model, two).backward()
                optimizer.step()

    record = watched(script)
    assert steps(record) == 8
    assert [loader.trains for loader in record.loaders] == [True, True]


def test_a_second_loader_drawn_in_the_middle(watched) -> None:
    def script() -> None:
        model, first, second = nn.Linear(3, 1), data(5), data(2)
        optimizer, others = sgd(model), iter(second)
        for batch in first:
            loss_of(model, batch).backward()
            optimizer.step()
            try:
                other = next(others)
            except StopIteration:
                others = iter(second)
                other = next(others)
            loss_of(model, other).backward()
            optimizer.step()

    assert steps(watched(script)) == 5


def test_epochs_of_one_batch_and_loaders_built_anew(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer, loader = sgd(model), data(1)
        train(model, optimizer, loader, epochs=4)
        for _ in range(3):
            train(model, optimizer, data(2))

    assert steps(watched(script)) == 10


def test_a_skipped_batch(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = sgd(model)
        for index, batch in enumerate(data(6)):
            if index == 3:
                continue
            loss_of(model, batch).backward()
            optimizer.step()

    assert steps(watched(script)) == 5


# what the data draws ---------------------------------------------------------------------------------------------


class Rows(Dataset):
    def __init__(self, draw=None, **held) -> None:
        self.draw = draw
        vars(self).update(held)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        noise = self.draw() if self.draw else 0.0
        return torch.full((3,), index + float(noise)), torch.zeros(1)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [(None, False), (lambda: torch.rand(()), True), (random.random, True), (numpy.random.rand, True)],
    ids=["nothing", "torch", "random", "numpy"],
)
@pytest.mark.parametrize("epochs", [1, 4])
def test_draws_random(watched, draw, expected: bool, epochs: int) -> None:
    """Epochs of three batches: each begins with a seed that the shuffling sampler draws, which is not the data's."""
    model = nn.Linear(3, 1)
    record = watched(lambda: train(model, sgd(model), DataLoader(Rows(draw), 2, shuffle=True), epochs=epochs))
    assert record.loaders[0].draws_random is expected


def test_draws_random_is_unknown_where_nobody_looked(watched) -> None:
    model = nn.Linear(3, 1)
    record = watched(lambda: train(model, sgd(model), DataLoader(Rows(), 6, shuffle=True), epochs=3))
    assert record.loaders[0].draws_random is None


def test_random_transforms_are_known_where_workers_draw() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    still = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
    moving = transforms.Compose([transforms.RandomHorizontalFlip(), still])
    held = {"plain": still, "moving": moving, "nested": transforms.Compose([moving]), "none": None}
    found = {
        name: [
            loader_facts(DataLoader(data, 2, num_workers=2)).draws_random
            for data in (Rows(transform=value), Subset(Rows(transform=value), [0, 1]))
        ]
        for name, value in held.items()
    }
    assert found == {"plain": [None] * 2, "moving": [True] * 2, "nested": [True] * 2, "none": [None] * 2}


OURS = numpy.random.default_rng(0)


class Speaks(Rows):
    def __getitem__(self, index: int):
        return torch.full((3,), OURS.random()), torch.zeros(1)


class Owns(Rows):
    generator = random.Random(0)


class Augment:
    def __init__(self, generator) -> None:
        self.generator = generator


class Pipeline:
    def __init__(self, *steps) -> None:
        self.transforms = list(steps)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Rows(), False),
        (Rows(library=random, numbers=numpy.random), False),
        (Rows(generator=torch.Generator()), True),
        (Rows(generator=numpy.random.RandomState(0)), True),
        (Rows(transform=Pipeline(Augment(random.Random(0)))), True),
        (Rows(transform=Pipeline(Augment(None))), False),
        (Rows(by_split={"train": Augment(numpy.random.default_rng(0))}), True),
        (Subset(Rows(generator=random.Random()), [0, 1]), True),
        (Speaks(), True),
        (Owns(), True),
        (TensorDataset(torch.zeros(2)), False),
    ],
    ids=[
        "none",
        "modules",
        "torch",
        "numpy",
        "transform",
        "deterministic",
        "dict",
        "subset",
        "global",
        "class",
        "tensors",
    ],
)
def test_private_generator(dataset: Dataset, expected: bool) -> None:
    assert has_private_generator(dataset) is expected


# roots -----------------------------------------------------------------------------------------------------------


def stepped(model: nn.Module, call, updates: int = 2):
    def script() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(updates):
            call(torch.randn(2, 3)).sum().backward()
            optimizer.step()

    return script


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.encode(x))

    def encode(self, x):
        return self.body(x).relu()


@pytest.mark.parametrize("method", ["forward", "encode"])
def test_a_root_reached_by_its_methods_stands_aside(watched, method: str) -> None:
    model = Net()
    record = watched(stepped(model, getattr(model, method)))
    assert [root.kind for root in record.roots] == ["Net"]
    assert "methods" in record.roots[0].stands_aside


def test_looking_keeps_nothing_of_the_scripts_alive(watched) -> None:
    """Reading a frame's locals makes a copy of them, which the frame would keep."""

    def main(answers: dict) -> None:
        big, model = torch.zeros(10), Net()
        gone = weakref.ref(big)
        stepped(model, model)()
        del big
        answers["dropped"] = gone() is None

    def keeps(answers: dict) -> None:
        mine, model = locals(), Net()
        stepped(model, model)()
        answers["kept"] = "answers" in mine

    answers: dict = {}
    watched(lambda: (main(answers), keeps(answers)))
    assert answers == {"dropped": True, "kept": True}


def test_a_wrapper_is_the_root(watched) -> None:
    model = nn.DataParallel(Net())
    record = watched(stepped(model, model))
    assert [(root.kind, root.stands_aside) for root in record.roots] == [("DataParallel", None)]


def test_a_root_is_found_after_an_interrupt_in_a_forward(watched) -> None:
    class Interrupted(Net):
        def forward(self, x):
            raise KeyboardInterrupt

    first, second = Interrupted(), Net()

    def script() -> None:
        with pytest.raises(KeyboardInterrupt):
            first(torch.randn(2, 3))
        stepped(second, second, updates=3)()

    assert "Net" in [root.kind for root in watched(script).roots]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_block_is_no_root(watched, reentrant: bool) -> None:
    class Saved(Net):
        def forward(self, x):
            from torch.utils.checkpoint import checkpoint

            return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=reentrant))

    model = Saved()
    assert [root.kind for root in watched(stepped(model, model)).roots] == ["Saved"]


def test_frozen_and_unwatched_modules_are_no_roots(watched) -> None:
    model, teacher, criterion = Net(), Net().requires_grad_(False), nn.MSELoss()
    ema = Net()

    def call(x):
        with torch.no_grad():
            ema(x)
        return criterion(model(x), teacher(x))

    record = watched(stepped(model, call))
    assert len(record.roots) == 1 and record.roots[0].calls == 1  # the first call has begun when it is found


class CopiesItself(nn.Module):
    """As people write it by hand, over `__dict__`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)

    def __deepcopy__(self, memo):
        new = CopiesItself.__new__(CopiesItself)
        for name, value in self.__dict__.items():
            new.__dict__[name] = copy.deepcopy(value, memo)
        return new

    def __getstate__(self):
        return dict(vars(self))


class ReducesItself(CopiesItself):
    def __reduce__(self):
        return _restored, (dict(vars(self)),)


def _restored(state):
    new = ReducesItself.__new__(ReducesItself)
    new.__dict__.update(state)
    return new


@pytest.mark.parametrize("kind", [CopiesItself, ReducesItself])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_by_hand_computes_with_its_own_weights(watched, kind, copied) -> None:
    seen: list[bool] = []

    def script() -> None:
        model = kind()
        optimizer, x = sgd(model), torch.ones(1, 3)
        train(model, optimizer, data(4))
        before, other = model(x).item(), copied(model)
        train(model, optimizer, data(4))
        seen.append(other(x).item() == before != model(x).item())

    record = watched(script)
    assert seen == [True] and record.roots[0].calls > 5


def test_a_dropped_model_is_freed_at_once(watched) -> None:
    alive: list[object] = []

    def script() -> None:
        for _ in range(3):
            model = nn.Linear(3, 1)
            optimizer = sgd(model)
            train(model, optimizer, data(8))
            reference = weakref.ref(model)
            del model, optimizer
            alive.append(reference())

    gc.disable()
    try:
        watched(script)
    finally:
        gc.enable()
    assert alive == [None, None, None]


class Odd(Dataset):
    def __len__(self) -> int:
        raise RuntimeError("not for you")

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3)


class OwnParameters(nn.Linear):
    def parameters(self, recurse: bool = True):
        return [{"params": list(super().parameters(recurse))}]


def test_odd_things_of_the_scripts_never_break_it(watched) -> None:
    """Each of these once raised out of our own bookkeeping."""

    def script() -> None:
        lazy = nn.ModuleList([nn.Linear(3, 1), nn.LazyLinear(2)])
        optimizer = torch.optim.SGD(lazy.parameters(), lr=0.1)
        sampler = torch.utils.data.SequentialSampler(range(24))
        for batch in DataLoader(Odd(), batch_size=2, sampler=sampler):
            lazy[0](batch).sum().backward()
            optimizer.step()
        groups = OwnParameters(3, 1)
        optimizer = torch.optim.SGD(groups.parameters(), lr=0.1)
        groups(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        done.append(True)

    done: list[bool] = []
    watched(script, closely=True)
    assert done == [True]


def test_a_thread_that_loads_ahead_makes_no_steps(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer, batches = sgd(model), queue.Queue(2)

        def load() -> None:
            for batch in data(12):
                batches.put(batch)
            batches.put(None)

        threading.Thread(target=load, daemon=True).start()
        while (batch := batches.get()) is not None:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    record = watched(script)
    assert len(record.step_seconds) in (11, 12) and record.share("wait") == 0


def test_autocast_and_layout_are_noted(watched) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 1)).to(memory_format=torch.channels_last)

    def call(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(torch.randn(2, 2, 4, 4).contiguous(memory_format=torch.channels_last)).float()

    record = watched(stepped(model, call))
    root = record.roots[0]
    assert (root.autocast, root.channels_last, root.input_channels_last, root.input_dims) == (
        "bfloat16",
        True,
        True,
        (4,),
    )


# what stays behind -----------------------------------------------------------------------------------------------


def hooks() -> tuple[int, int]:
    return len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)


def test_no_module_hooks_after_a_few_updates_and_again_with_another_optimizer(watched) -> None:
    seen = []

    def script() -> None:
        for _ in range(2):
            model = Net()
            script_of_one = stepped(model, model, updates=8)
            script_of_one()
            seen.append(hooks())

    record = watched(script)
    assert seen == [(0, 0), (0, 0)]
    assert len(record.roots) == 2
    assert not torch_optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize("how", ["function", "module", "method"])
def test_what_the_script_compiles_is_traced_without_hooks(watched, how: str) -> None:
    seen, model = [], Net()

    def script() -> None:
        call = model
        if how == "module":
            call = torch.compile(model, backend="eager")
        elif how == "method":
            model.compile(backend="eager")
        else:
            call = torch.compile(lambda x: model(x), backend="eager")
        seen.append(hooks())
        optimizer = sgd(model)
        seen.append(hooks())
        for _ in range(2):
            call(torch.randn(2, 3)).sum().backward()
            optimizer.step()

    before = torch._dynamo.utils.counters["graph_break"].copy()
    record = watched(script, closely=True)
    assert seen == [(0, 0), (0, 0)]
    assert torch._dynamo.utils.counters["graph_break"] == before
    assert record.script_compiles and record.optimizers[0].updates == 2


def test_the_record_goes_to_json_and_back(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = sgd(model)
        for batch in data(3):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            loss.item()

    record = watched(script, closely=True)
    assert record.syncs and record.syncs[0].path == __file__
    assert from_json(Run, json.loads(json.dumps(to_json(record)))) == record


def test_waits_are_blamed_on_the_line(watched) -> None:
    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = sgd(model)
        for batch in data(3):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            loss.item()
            batch[0].to(torch.float64)

    record = watched(script, closely=True)
    first = script.__code__.co_firstlineno
    lines = {(sync.path, sync.line - first): sync.count for sync in record.syncs}
    assert lines[(__file__, 7)] == 3
    assert record.share("sync") > 0 and record.share("copy") == 0  # another dtype is no move


PHOTOS = """
    import sys
    from PIL import Image
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Photos(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            with open("photo.png", "rb") as file:
                image = Image.open(file).convert("L")
            return torch.tensor(list(image.tobytes()[:3]), dtype=torch.float32)

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(2):
        for batch in DataLoader(Photos(), batch_size=2, num_workers=int(sys.argv[1])):
            model(batch).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reader", ["PIL", "cv2"])
def test_images_opened_also_by_workers(run_script, tmp_path: Path, workers: int, reader: str) -> None:
    from PIL import Image

    script = PHOTOS
    if reader == "cv2":
        pytest.importorskip("cv2", reason="needs opencv-python-headless")
        script = PHOTOS.replace("from PIL import Image", "import cv2")
        script = script.replace('Image.open(file).convert("L")', 'cv2.imread("photo.png", 0)')
    Image.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    trial = run_script(tmp_path / "train.py", arguments=[str(workers)])
    assert trial.good, trial.log
    assert trial.run.images_opened == 16
    assert trial.run.steps == len(trial.run.step_seconds) == 8
    assert trial.run.loaders[0].draws_random is (None if workers else False)


@pytest.mark.parametrize(("epochs", "expected"), [(0, 57), (3, 69)])
def test_one_batch_for_many_updates(watched, epochs: int, expected: int) -> None:
    """Nothing is drawn any more: after some updates they tell of steps, until there is a loop over the loader."""

    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer, loader = sgd(model), data(4)
        some = next(iter(loader))
        for batch in itertools.chain([some] * 90, *[loader] * epochs):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    record = watched(script)
    assert steps(record) == expected
    assert [loader.trains for loader in record.loaders] == [True]


def test_weights_updated_by_hand(watched) -> None:
    """Neither a loader nor an optimizer: the first backwards show that there is none, then each ends a step."""

    def script() -> None:
        model = nn.Linear(3, 1)
        for _ in range(60):
            model.zero_grad()
            loss_of(model, (torch.randn(2, 3), torch.randn(2, 1))).backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
        hooked.append(len(torch_module._global_forward_pre_hooks))

    hooked: list[int] = []
    record = watched(script)
    assert steps(record) == 52 and hooked == [0]
    assert [root.calls for root in record.roots] == [59]  # the first call is before it is found


def test_workers_leave_the_ledger_alone(watched) -> None:
    class Reads(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            assert torch.ones(1).item() == 1 and torch.ones(1).to(torch.float64).sum()
            return torch.ones(3)

    def script() -> None:
        model = nn.Linear(3, 1)
        optimizer = sgd(model)
        for batch in DataLoader(Reads(), batch_size=2, num_workers=2):
            model(batch).sum().backward()
            optimizer.step()

    record = watched(script, closely=True)
    assert steps(record) == 4 and record.syncs == []


@pytest.mark.parametrize("in_place", [False, True])
def test_what_the_script_compiles_is_timed_from_outside(watched, in_place: bool) -> None:
    def script() -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = sgd(model)
        if in_place:
            model.compile(backend="eager")
        called = model if in_place else torch.compile(model, backend="eager")
        assert list(called.state_dict()) == (
            list(model.state_dict()) if in_place else [f"_orig_mod.{name}" for name in model.state_dict()]
        )
        train(called, optimizer, data(5))
        kept.append(copy.deepcopy(model))

    kept: list[nn.Module] = []
    torch._dynamo.reset()
    breaks = torch._dynamo.utils.counters["graph_break"].copy()
    record = watched(script, closely=True)
    assert steps(record) == 5 and record.script_compiles
    assert [(root.compiled, root.calls) for root in record.roots] == [(True, 5)]
    assert record.share("forward") > 0
    assert torch._dynamo.utils.counters["graph_break"] == breaks
    assert "_compiled_call_impl" not in vars(kept[0]) or vars(kept[0])["_compiled_call_impl"] is None


def test_masks_are_awaited_for_some_steps_only() -> None:
    """To look at every index costs: where the first steps had no mask, torch's own method is put back."""
    original = vars(torch.Tensor).get("__getitem__")
    patch = Patch(Joints())
    try:
        watch = Watch(patch, closely=True)
        watch._waits.device_is_used(2)
        assert vars(torch.Tensor)["__getitem__"] is not original
        watch._waits.device_is_used(8)
        assert vars(torch.Tensor)["__getitem__"] is not original
        watch._waits.device_is_used(32)
        assert vars(torch.Tensor).get("__getitem__") is original
    finally:
        patch.undo()
    assert vars(torch.Tensor).get("__getitem__") is original


def test_who_collates() -> None:
    data = list(range(4))
    assert [loader_facts(DataLoader(data, 2, collate_fn=own)).own_collate for own in (None, list)] == [False, True]
