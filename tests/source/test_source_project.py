"""Questions whose answer lies in another file of the same project."""

import ast

import pytest

from hotlap.source.calls import UNSURE
from hotlap.source.module import Source
from hotlap.source.project import Project

STEP = "def train_step(x):\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
LOOP = "for x in loader:\n    train_step(x)\n"


def written(folder, **files):
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "imports"),
    [
        ({"engine": STEP}, "from engine import train_step\n"),
        ({"engine": STEP}, "from engine import train_step as train_step\n"),
        ({"pkg/engine": STEP}, "from pkg.engine import train_step\n"),
        ({"pkg/engine": STEP, "pkg/__init__": "from .engine import train_step\n"}, "from pkg import train_step\n"),
    ],
)
def test_a_loop_trains_through_a_function_of_another_file(tmp_path, files, imports):
    written(tmp_path, train=imports + LOOP, **files)
    assert [loop.lineno for loop in Source.read(tmp_path / "train.py").training_loops()] == [2]


def test_relative_imports_and_modules_by_name(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "engine.py").write_text(STEP)
    (tmp_path / "pkg" / "train.py").write_text("from . import engine\nfor x in loader:\n    engine.train_step(x)\n")
    (tmp_path / "main.py").write_text("import pkg.engine\nfor x in loader:\n    pkg.engine.train_step(x)\n")
    for name in ("pkg/train.py", "main.py"):
        assert [loop.lineno for loop in Source.read(tmp_path / name).training_loops()] == [2], name


def test_an_epoch_loop_over_a_function_that_loops_itself_is_not_the_training_loop(tmp_path):
    engine = "def train(loader):\n    for x in loader:\n        model(x).backward()\n        optimizer.step()\n"
    written(tmp_path, engine=engine, main="from engine import train\nfor epoch in range(3):\n    train(loader)\n")
    assert Source.read(tmp_path / "main.py").training_loops() == []
    assert len(Source.read(tmp_path / "engine.py").training_loops()) == 1


def test_a_step_knows_the_loop_that_calls_it(tmp_path):
    written(tmp_path, engine=STEP, main="from engine import train_step\n" + LOOP, other="from mine import train_step\n")
    engine = Source.read(tmp_path / "engine.py")
    backward = next(engine.method_calls("backward"))
    found = engine.training_loop_of(backward)
    assert found is not None and found[0].path.endswith("main.py") and found[1].lineno == 2


@pytest.mark.parametrize(("around", "expected"), [("torch.no_grad()", True), ("open(p)", False)])
def test_no_grad_of_the_caller_one_level_up(tmp_path, around, expected):
    evaluate = "def evaluate(loader):\n    for x in loader:\n        model(x)\n"
    calling = f"with {around}:\n    evaluate(loader)\n"
    written(tmp_path, engine=evaluate, main="import torch\nfrom engine import evaluate\n" + calling)
    written(tmp_path, alone="import torch\n" + evaluate + calling)
    for name in ("engine.py", "alone.py"):
        source = Source.read(tmp_path / name)
        model = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "model")
        assert source.under_no_grad(model) is expected, name


def test_settings_from_another_file(tmp_path):
    written(tmp_path, options="def options():\n    return {'n': 3}\n")
    main = tmp_path / "main.py"
    main.write_text("import torch\nfrom options import options\ntorch.f(**options())\n")
    call = next(Source.read(main).calls("torch.f"))
    assert call.known("n").value == 3
    (tmp_path / "options.py").write_text("def options():\n    return load()\n")
    assert next(Source.read(main).calls("torch.f")).known("n") is UNSURE


def test_methods_of_objects_built_here(tmp_path):
    trainer = "class Trainer:\n    def step(self, x):\n        self.net(x).backward()\n        self.opt.step()\n"
    main = "from trainer import Trainer\nt = Trainer()\nfor x in loader:\n    t.step(x)\n"
    written(tmp_path, trainer=trainer, main=main)
    assert [loop.lineno for loop in Source.read(tmp_path / "main.py").training_loops()] == [3]


def test_what_answers_rest_on_is_known(tmp_path):
    written(tmp_path, engine=STEP, main="from engine import train_step\nfrom gone import other\nother()\n" + LOOP)
    project = Project()
    source = Source.read(tmp_path / "main.py", project)
    source.training_loops(), source.resolve(next(iter(source.names.call_nodes)).func)
    needed = {path.removeprefix(str(tmp_path)) for path in project.needs(str(tmp_path / "main.py"))}
    assert {"/engine.py", "/gone.py"} <= needed


def test_files_that_import_each_other_and_files_that_do_not_parse_end(tmp_path):
    written(
        tmp_path, a="from b import f\nf()\n", b="from a import f\nf()\n", c="from bad import f\nf()\n", bad="def (\n"
    )
    for name in ("a.py", "c.py"):
        source = Source.read(tmp_path / name)
        assert source.resolve(source.names.call_nodes[0].func) is None
    project = Project()
    start = Source.read(tmp_path / "a.py", project)
    assert sorted(path.removeprefix(str(tmp_path)) for path in project.imported(start)) == ["/a.py", "/b.py"]


def test_packages_at_the_top_of_a_project_are_reached_from_deep_below(tmp_path) -> None:
    from hotlap.source.fix import reached_from

    script, package = tmp_path / "projects" / "deep" / "main.py", tmp_path / "package"
    script.parent.mkdir(parents=True)
    package.mkdir()
    script.write_text("from package.trainer import Trainer\n")
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text("class Trainer: ...\n")
    (tmp_path / "setup.py").touch()
    assert reached_from(str(script)) == [str(script)]
    assert str(package / "trainer.py") in reached_from(str(script), from_the_top=True)
