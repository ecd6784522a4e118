"""What names, calls, settings and loops mean, in every form people write them."""

import ast

import pytest

from hotlap.errors import HotlapError
from hotlap.source.calls import ABSENT, UNSURE
from hotlap.source.module import Source

LOADER = "torch.utils.data.DataLoader"


def found(text: str, *names: str) -> list[int]:
    return [call.node.lineno for call in Source(text).calls(*names)]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.utils.data.DataLoader(d)",
        "import torch.utils.data\ntorch.utils.data.DataLoader(d)",
        "import torch.utils.data as data\ndata.DataLoader(d)",
        "from torch.utils import data\ndata.DataLoader(d)",
        "from torch.utils.data import DataLoader\nDataLoader(d)",
        "from torch.utils.data import DataLoader as DL\nDL(d)",
        "from torch.utils.data.dataloader import DataLoader\nDataLoader(d)",
        "import torch as th; DL = th.utils.data.DataLoader\nDL(d)",
        "import torch as th; u = th.utils; DL = u.data.DataLoader\nDL(d)",
        "def f(): from torch.utils.data import DataLoader;\\\n  DataLoader(d)",
        "try: import torch\nexcept ImportError: torch = None\ntorch.utils.data.DataLoader(d)",
        "from torch.utils.data import *\nDataLoader(d)",
        "if fast:\n    import torch.utils.data as data\nelse:\n    from torch.utils import data\ndata.DataLoader(d)",
    ],
)
def test_every_import_form_is_understood(text):
    assert len(found(text, LOADER)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from mine import DataLoader\nDataLoader(d)",
        "from torch.utils.data import *\nfrom mine import *\nDataLoader(d)",
        "import torch\ndef f(torch): torch.utils.data.DataLoader(d)",
        "import torch\nfor torch in x: torch.utils.data.DataLoader(d)",
        "from torch.utils.data import DataLoader\nfrom mine import DataLoader\nDataLoader(d)",
        "from torch.utils.data import DataLoader\nclass DataLoader(DataLoader): pass\nDataLoader(d)",
        "import torch\n[torch.utils.data.DataLoader(d) for torch in x]",
        "import torch\ndef f():\n  global torch\n  torch = 3\ntorch.utils.data.DataLoader(d)",
        "from functools import partial\nfrom torch.utils.data import DataLoader\nL = partial(DataLoader)\nL(d)",
        "a = b\nb = a\na.DataLoader(d)",
    ],
)
def test_shadowed_and_unsure_names_are_none(text):
    assert found(text, LOADER) == []


def test_scopes_do_not_leak():
    text = "import torch\ndef f():\n    torch = 1\nclass C:\n    torch = 2\n    def g(self):\n        torch.zeros(1)\n"
    assert found(text, "torch.zeros") == [7]


def test_the_first_iterable_of_a_comprehension_is_looked_up_outside():
    assert found("import torch\n[torch for torch in torch.zeros(1)]", "torch.zeros") == [2]


def test_builtins_go_by_their_own_name_unless_rebound():
    assert found("print(open(p))", "open") == [1]
    assert found("from gzip import open\nopen(p)", "open") == []


def test_modules_of_torch_are_known_by_their_published_name():
    text = "from torch.nn.modules.conv import Conv2d\nfrom torch.optim.lr_scheduler import StepLR\nConv2d()\nStepLR()"
    assert found(text, "torch.nn.Conv2d") == [3]
    assert found(text, "torch.optim.lr_scheduler.StepLR") == [4]


def setting(lines: str, keyword: str = "n", position: int | None = None):
    """The setting of the last call of `torch.f`, as text."""
    source = Source("import torch\n" + lines)
    given = list(source.calls("torch.f"))[-1].setting(keyword, position)
    return source.segment(given) if isinstance(given, ast.expr) else given


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("torch.f()", ABSENT),
        ("torch.f(n=1)", "1"),
        ("torch.f(n=args.n)", "args.n"),
        ("torch.f(**{'n': 1})", "1"),
        ("torch.f(**{'m': 1})", ABSENT),
        ("torch.f(**{key: 1})", UNSURE),
        ("torch.f(**dict(n=1))", "1"),
        ("torch.f(**dict(m=1))", ABSENT),
        ("torch.f(**unknown())", UNSURE),
        ("torch.f(**self.options)", UNSURE),
        ("kw = {'n': 1}\ntorch.f(**kw)", "1"),
        ("kw = {'m': 1}\ntorch.f(**kw)", ABSENT),
        ("kw = {}\ndef g():\n    torch.f(**kw)", ABSENT),
        ("def g(**kw):\n    torch.f(**kw)", UNSURE),
        ("def g(kw={}):\n    torch.f(**kw)", UNSURE),
        ("kw = {}\nkw['n'] = 2\ntorch.f(**kw)", "2"),
        ("kw = {}\nkw['m'] = 2\ntorch.f(**kw)", ABSENT),
        ("kw = {}\nkw[key] = 2\ntorch.f(**kw)", UNSURE),
        ("kw = {}\nkw.update({'n': 2})\ntorch.f(**kw)", "2"),
        ("kw = {}\nkw.update(n=2)\ntorch.f(**kw)", "2"),
        ("kw = {'n': 1}\nkw.update(n=2)\ntorch.f(**kw)", "2"),
        ("kw = {}\nmore = {'n': 2}\nkw.update(more)\ntorch.f(**kw)", "2"),
        ("kw = {}\nif cuda:\n    kw.update(n=2)\ntorch.f(**kw)", UNSURE),
        ("kw = {}\nif cuda:\n    kw['n'] = 2\ntorch.f(**kw)", UNSURE),
        ("kw = {}\nif cuda:\n    kw['m'] = 2\ntorch.f(**kw)", ABSENT),
        ("kw = {}\nif cuda:\n    kw['n'] = 2\n    torch.f(**kw)", "2"),
        ("kw = {}\ntorch.f(**kw)\nkw['n'] = 2", UNSURE),
        ("kw = {'n': 1} if cuda else {}\ntorch.f(**kw)", UNSURE),
        ("kw = {'n': 1} if cuda else {'n': 1}\ntorch.f(**kw)", "1"),
        ("kw = {'m': 1} if cuda else {}\ntorch.f(**kw)", ABSENT),
        ("if cuda:\n    kw = {'n': 1}\nelse:\n    kw = {}\ntorch.f(**kw)", UNSURE),
        ("if cuda:\n    kw = {'m': 1}\nelse:\n    kw = {}\ntorch.f(**kw)", ABSENT),
        ("kw = {}\nfill(kw)\ntorch.f(**kw)", UNSURE),
        ("kw = {}\nprint(kw)\ntorch.f(**kw)", ABSENT),
        ("kw = {}\nother = kw\nother['n'] = 1\ntorch.f(**kw)", UNSURE),
        ("kw = {'n': 1}\nkw.pop('n')\ntorch.f(**kw)", UNSURE),
        ("base = {'n': 1}\nkw = {**base, 'm': 2}\ntorch.f(**kw)", "1"),
        ("base = {'m': 1}\nkw = base | {'n': 2}\ntorch.f(**kw)", "2"),
        ("base = {'m': 1}\nkw = base.copy()\ntorch.f(**kw)", ABSENT),
    ],
)
def test_settings_through_kwargs(lines, expected):
    assert setting(lines) == expected


def test_settings_by_position():
    assert setting("torch.f(a, b)", "n", position=1) == "b"
    assert setting("torch.f(a)", "n", position=1) is ABSENT
    assert setting("torch.f(*a)", "n", position=1) is UNSURE
    assert setting("torch.f(a, b, *c)", "n", position=1) == "b"
    assert setting("torch.f(*a)", "n") is ABSENT


TRAINING = """
import torch
def train(loader):
    for epoch in range(3):
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
        scheduler.step()

def one_step(batch):
    model(batch).backward()
    optimizer.step()

def by_function(loader):
    while True:
        for batch in loader:
            one_step(batch)

def run():
    for epoch in range(3):
        train(loader)

class Trainer:
    def step(self, batch):
        self.loss(batch).backward()
        self.optimizer.step()
    def fit(self, loader):
        for batch in loader:
            self.step(batch)

def by_hand(loader):
    for batch in loader:
        model(batch).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)

def evaluate(loader):
    model.eval()
    for batch in loader:
        model(batch)

@torch.no_grad()
def test(net, loader):
    net.train(False)
    for batch in loader:
        net(batch)

def sampling(loader):
    model.eval()
    model.train()
    for batch in loader:
        model(batch)
"""


def test_loops_are_told_apart():
    source = Source(TRAINING)
    lines = TRAINING.split("\n")
    assert [loop.lineno for loop in source.training_loops()] == [
        lines.index("        for batch in loader:") + 1,
        lines.index("            one_step(batch)"),
        lines.index("            self.step(batch)"),
        lines.index("def by_hand(loader):") + 2,
    ]
    assert [loop.lineno for loop in source.evaluation_loops()] == [
        lines.index("def evaluate(loader):") + 3,
        lines.index("def test(net, loader):") + 3,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\nwith torch.no_grad():\n    x = 1", True),
        ("import torch\nwith open(p) as f, torch.inference_mode():\n    x = 1", True),
        ("from torch import no_grad\n@no_grad()\ndef f():\n    x = 1", True),
        ("import torch\n@torch.no_grad\ndef f():\n    x = 1", True),
        ("import torch\nwith torch.set_grad_enabled(False):\n    x = 1", True),
        ("import torch\nwith torch.set_grad_enabled(True):\n    x = 1", False),
        ("import torch\nwith torch.inference_mode(False):\n    x = 1", False),
        ("import torch\nwith torch.no_grad():\n    with torch.enable_grad():\n        x = 1", False),
        ("import torch\nwith open(p):\n    x = 1", False),
    ],
)
def test_under_no_grad(text, expected):
    source = Source(text)
    node = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Assign))
    assert source.under_no_grad(node) is expected


def test_ignores_are_read_from_comments_only():
    source = Source(
        'a = 1  # hotlap: ignore[one, two_words]\nb = "# hotlap: ignore"\nc = 3  # noqa  # hotlap: ignore\n'
    )
    assert source.is_ignored(1, "one") and source.is_ignored(1, "two-words") and not source.is_ignored(1, "three")
    assert not source.is_ignored(2, "one")
    assert source.is_ignored(3, "anything")


def test_sites_count_characters_from_one():
    source = Source("é = 'ü'; import torch\nλ = torch.f()")
    call = next(iter(source.calls("torch.f")))
    site = source.site(call.node, "message", "safe")
    assert (site.line, site.column, source.segment(call.node)) == (2, 5, "torch.f()")


def test_form_feeds_and_unicode_separators_do_not_break_lines():
    source = Source("import torch\nx = '\u2028\x0c'\n\x0cy = torch.f()\n")
    call = next(iter(source.calls("torch.f")))
    assert (call.node.lineno, source.segment(call.node)) == (3, "torch.f()")


def test_files_are_read_in_the_encoding_they_declare(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes("# -*- coding: latin-1 -*-\r\nx = 'é'\r\n".encode("latin-1"))
    assert Source.read(path).text.endswith("x = 'é'\r\n")
    path.write_bytes("\ufeffx = 'é'".encode())
    assert Source.read(path).text == "x = 'é'"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"x = 1\ny = (\n", ":2: "),
        (b"x = 1\ny = '\xff'\n", ":2: "),
        (b"# coding: nonsense\n", ":1: "),
        (b"x = 1\x00\n", ":1: "),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_a_line(tmp_path, data, place):
    path = tmp_path / "bad.py"
    path.write_bytes(data)
    with pytest.raises(HotlapError) as error:
        Source.read(path)
    assert place in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_files_are_one_sentence(tmp_path):
    with pytest.raises(HotlapError, match="cannot be read"):
        Source.read(tmp_path / "none.py")
