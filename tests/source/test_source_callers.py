"""Values and loops followed through the calls of a function, into the files that call it."""

import ast

import pytest

from hotlap.source.calls import ABSENT, UNSURE
from hotlap.source.check import check
from hotlap.source.loops import loops_around, makes_gradients
from hotlap.source.module import Source
from hotlap.source.origins import makers

LOADER = "torch.utils.data.DataLoader"
EVALUATE = "import torch\ndef evaluate(model, loader):\n    for x in loader:\n        model(x.cuda())\n"
MAIN = "from torch.utils.data import DataLoader\nfrom engine import evaluate\nval = DataLoader(d, pin_memory=True)\n"


def written(folder, **files):
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def drawn_from(path, parameter="loader"):
    source = Source.read(path)
    (loop,) = (node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    found = makers(source, loop.iter, LOADER)
    return None if found is None else [(one.source.path.rpartition("/")[2], one.node.lineno) for one in found]


@pytest.mark.parametrize(
    "call",
    [
        "evaluate(model, val)",
        "evaluate(model, loader=val)",
        "evaluate(model, val if val else None)",
        "import torch.multiprocessing as mp\nmp.Process(target=evaluate, args=(model, val)).start()",
        "import threading\nthreading.Thread(target=evaluate, args=[model, val]).start()",
    ],
)
def test_a_parameter_is_what_another_file_gives(tmp_path, call):
    written(tmp_path, engine=EVALUATE, main=MAIN + call + "\n")
    assert drawn_from(tmp_path / "engine.py") == [("main.py", 3)]


@pytest.mark.parametrize(
    "call",
    [
        "evaluate(model, val)\nevaluate(model, other())",  # one of two cannot be read
        "evaluate(*both)",
        "import torch.multiprocessing as mp\nmp.Process(target=evaluate, args=both).start()",
        "from mine import evaluate\nevaluate(model, val)",  # another function of that name
    ],
)
def test_what_cannot_be_read_is_not_guessed(tmp_path, call):
    written(tmp_path, engine=EVALUATE, main=MAIN + call + "\n")
    assert drawn_from(tmp_path / "engine.py") is None


def test_spawn_gives_its_own_number_first(tmp_path):
    engine = EVALUATE.replace("(model, loader)", "(rank, model, loader)")
    call = "import torch.multiprocessing as mp\nmp.spawn(evaluate, args=(model, val), nprocs=2)\n"
    written(tmp_path, engine=engine, main=MAIN + call)
    assert drawn_from(tmp_path / "engine.py") == [("main.py", 3)]


def test_an_object_is_built_in_another_file(tmp_path):
    engine = "class Trainer:\n    def __init__(self, loader):\n        self.loader = loader\n"
    engine += "    def run(self):\n        for x in self.loader:\n            pass\n"
    main = MAIN.replace("evaluate", "Trainer") + "trainer = Trainer(val)\nfor epoch in range(9):\n    trainer.run()\n"
    written(tmp_path, engine=engine, main=main)
    assert drawn_from(tmp_path / "engine.py") == [("main.py", 3)]
    source = Source.read(tmp_path / "engine.py")
    (loop,) = (node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    assert [(where.path.endswith("main.py"), one.lineno) for where, one in loops_around(source, loop)] == [(True, 5)]


def test_nobody_gives_an_object_itself():
    source = Source("class A:\n  def run(self):\n    for x in self: pass\nA().run()\n")
    (loop,) = (node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    assert makers(source, loop.iter, LOADER) is None


def test_a_function_of_another_file_makes_the_loader(tmp_path):
    data = "from torch.utils.data import DataLoader\ndef make():\n    return DataLoader(d), DataLoader(e)\n"
    written(tmp_path, data=data, main="from data import make\na, b = make()\nfor x in b:\n    pass\n")
    assert drawn_from(tmp_path / "main.py") == [("data.py", 3)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{'pin_memory': True}", True),
        ("{'batch_size': 4}", ABSENT),
        ("options()", UNSURE),
        ("dict(pin_memory=True)", True),
    ],
)
def test_settings_through_a_parameter(tmp_path, given, expected):
    engine = "from torch.utils.data import DataLoader\ndef build(kwargs):\n    return DataLoader(d, **kwargs)\n"
    written(tmp_path, engine=engine, main=f"from engine import build\nbuild({given})\n")
    (call,) = Source.read(tmp_path / "engine.py").calls(LOADER)
    found = call.setting("pin_memory", 7)
    assert (found.value if isinstance(found, ast.Constant) else found) is expected


def test_a_generator_runs_in_the_loop_that_draws_from_it():
    text = "def batches():\n  mark()\n  yield 1\ndef once():\n  mark()\n  return [1]\n"
    source = Source(text + "for x in batches():\n  pass\nfor y in once():\n  pass\n")
    marks = [call for call in source.names.call_nodes if isinstance(call.func, ast.Name) and call.func.id == "mark"]
    around = {call.lineno: [loop.lineno for _, loop in loops_around(source, call)] for call in marks}
    assert around == {2: [7], 5: []}


def test_gradients_are_made_behind_two_calls(tmp_path):
    engine = "def step(x):\n    model(x).backward()\ndef train():\n    for x in loader:\n        step(x)\n"
    written(
        tmp_path,
        engine=engine,
        main="from engine import train\nfor epoch in range(3):\n    train()\nfor x in y: f(x)\n",
    )
    main = Source.read(tmp_path / "main.py")
    found = [makes_gradients(main, loop) for loop in ast.walk(main.tree) if isinstance(loop, ast.For)]
    assert found == [True, False]


class Drawn:
    """Finds loops over loaders that pin, wherever those are built."""

    id, verbs = "drawn", ("spot",)

    def spot(self, source):
        for loop in (node for node in ast.walk(source.tree) if isinstance(node, ast.For)):
            if any(
                one.setting("pin_memory", 7) not in (ABSENT, UNSURE) for one in makers(source, loop.iter, LOADER) or ()
            ):
                yield source.site(loop, "drawn")


def test_the_store_knows_when_a_caller_has_changed(tmp_path, monkeypatch):
    """Also where the caller's own answer lies in a third file, in another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    main = (
        "from torch.utils.data import DataLoader\nfrom engine import evaluate\nfrom settings.loading import options\n"
    )
    main += "evaluate(model, DataLoader(d, **options()))\n"
    settings = "def options():\n    return {'pin_memory': True}\n"
    written(tmp_path / "src", engine=EVALUATE, main=main, **{"settings/loading": settings, "settings/__init__": ""})

    def found():
        return len(check([tmp_path / "src" / "engine.py"], [Drawn()], cached=True)[0])

    assert (found(), found()) == (1, 1)
    (tmp_path / "src" / "settings" / "loading.py").write_text("def options():\n    return {'batch_size': 4}\n")
    assert found() == 0
    (tmp_path / "src" / "settings" / "loading.py").write_text(settings)
    assert found() == 1
    (tmp_path / "src" / "main.py").write_text(main.replace("options()))", "options()), 1)\nevaluate(1, mine"))
    assert found() == 0
