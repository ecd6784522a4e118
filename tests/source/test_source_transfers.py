"""Where loaders come from, which copies are their batches', and what a step computes on the device."""

import ast

import pytest

from hotlap.source.arrays import element_type, is_array, is_fresh
from hotlap.source.device_values import DeviceValues
from hotlap.source.loops import loops_around
from hotlap.source.module import Source
from hotlap.source.origins import makers
from hotlap.source.transfers import changes_its_data, device_moves, draws

LOADER = "torch.utils.data.DataLoader"
HEAD = "import torch, numpy as np\nfrom torch.utils.data import DataLoader\n"


def moved(text: str) -> list[str]:
    """The moves of batches whose loader is surely known."""
    source = Source(HEAD + text)
    known = [draw for draw in draws(source) if makers(source, draw.loader, LOADER)]
    return [source.segment(move) for draw in known for move in device_moves(source, draw)]


FOLLOWED = {
    "a name": "loader = DataLoader(d)\nfor x in loader: x.to(dev)",
    "at once": "for x in DataLoader(d): x.to(dev)",
    "counted": "loader = DataLoader(d)\nfor i, (x, y) in enumerate(loader, 1): x.to(dev)",
    "a bar": "from tqdm import tqdm\nfor i, x in enumerate(tqdm(DataLoader(d))): x.to(dev)",
    "a star import": "from models import *\nloader = DataLoader(d)\nfor i, x in enumerate(loader): x.to(dev)",
    "a parameter": "def train(loader):\n  for x in loader: x.to(dev)\ntrain(DataLoader(d))",
    "a parameter by name": "def train(e, *, loader):\n  for x in loader: x.to(dev)\ntrain(1, loader=DataLoader(d))",
    "a function's value": "def make():\n  return DataLoader(d)\nfor x in make(): x.to(dev)",
    "one of two": "def make():\n  return DataLoader(d), DataLoader(e)\na, b = make()\nfor x in b: x.to(dev)",
    "an attribute": "class T:\n  def __init__(self, a):\n    self.a = a\n"
    "  def fit(self):\n    for x in self.a: x.to(dev)\nT(DataLoader(d)).fit()",
    "or none": "a = DataLoader(d) if d else None\nfor x in a: x.to(dev)",
    "an iterator": "def f():\n  it = iter(DataLoader(d))\n  while True:\n    x = next(it)\n    x.to(dev)",
}


@pytest.mark.parametrize("text", FOLLOWED.values(), ids=FOLLOWED)
def test_a_loader_is_followed_to_its_batches(text: str) -> None:
    assert moved(text) == ["x.to(dev)"]


NOT_FOLLOWED = {
    "never called": "def train(loader):\n  for x in loader: x.to(dev)",
    "called with something else too": "def f(l):\n  for x in l: x.to(dev)\nf(DataLoader(d))\nf(load())",
    "called with a star": "def f(l):\n  for x in l: x.to(dev)\nf(*[DataLoader(d)])",
    "set from outside": "class T:\n  def fit(self):\n    for x in self.a: x.to(dev)",
    "bound twice": "a = DataLoader(d)\na = wrap(a)\nfor x in a: x.to(dev)",
    "a generator": "def f():\n  yield DataLoader(d)\nfor x in f(): x.to(dev)",
    "its own maker": "def f(l):\n  return f(l)\nfor x in f(DataLoader(d)): x.to(dev)",
    "not the batch": "for x in DataLoader(d): y.to(dev)",
    "to the host": "for x in DataLoader(d): x.to('cpu')",
    "a dtype": "for x in DataLoader(d): x.to(torch.float16)",
    "computed before": "for x in DataLoader(d):\n  x = x + 1\n  x.to(dev)",
}


@pytest.mark.parametrize("text", NOT_FOLLOWED.values(), ids=NOT_FOLLOWED)
def test_silent_where_it_could_be_something_else(text: str) -> None:
    assert moved(text) == []


@pytest.mark.parametrize(
    "body",
    [
        "x, y = b; x.to(dev)",
        "x = b['image']; x.to(dev)",
        "b[0].to(dev)",
        "[t.to(dev) for t in b]",
        "{k: v.to(dev) for k, v in b.items()}",
        "x, y = b[0].to(dev), 1",
        "b.cuda(0)",
    ],
)
def test_parts_of_a_batch(body: str) -> None:
    assert len(moved(f"for b in DataLoader(d):\n  {body}")) == 1


def test_loops_around_a_call_count_the_callers() -> None:
    text = "def a():\n  mark()\ndef b():\n  a()\nfor i in x:\n  b()\nfor j in mark(): pass"
    source = Source(text)
    calls = [call for call in source.names.call_nodes if isinstance(call.func, ast.Name) and call.func.id == "mark"]
    around = [{loop.lineno for _, loop in loops_around(source, call)} for call in calls]
    assert sorted(around, key=len) == [set(), {5}], "what a loop goes through is evaluated once"


def expression(text: str, before: str = "") -> tuple[Source, ast.AST]:
    source = Source(f"{HEAD}{before}\n({text})")
    last = source.tree.body[-1]
    assert isinstance(last, ast.Expr)
    return source, last.value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("np.zeros(3)", "float64"),
        ("np.zeros(3, dtype=np.float32)", "float32"),
        ("np.zeros(3, np.float32)", None),
        ("np.random.rand(3)", "float64"),
        ("np.random.normal(0, 1, (3, 2))", "float64"),
        ("np.arange(3)", None),
        ("np.array(x)", None),
        ("np.zeros((3, 3)).astype('float32')", "float32"),
        ("np.zeros((3, 3)).reshape(9)", "float64"),
        ("a[1:]", "float64"),
        ("a[:, 0]", "float64"),
        ("a * 2", None),
    ],
)
def test_arrays_and_their_types(text: str, kind: str | None) -> None:
    source, node = expression(text, "a = np.ones((3, 3))")
    assert is_array(source, node) and element_type(source, node) == kind


@pytest.mark.parametrize("text", ["[1, 2]", "np.random.rand()", "np.random.normal()", "a[0]", "load()", "a[::-1]", "b"])
def test_no_array_for_sure(text: str) -> None:
    source, node = expression(text, "a = np.ones((3, 3))\nb = np.zeros(3)\nb = load()")
    assert not is_array(source, node)


def test_a_view_is_not_fresh() -> None:
    fresh = [is_fresh(*expression(text, "a = np.ones((3, 3))")) for text in ("a", "a[1:]", "a.T", "a + 1", "a.copy()")]
    assert fresh == [False, False, False, True, True]


def test_what_a_step_computes() -> None:
    source = Source(
        "model = torch.nn.Sequential()\nmodel.train()\n"
        "for x, y in data:\n"
        "  out = model(x)\n  n = out.size(0)\n  loss = criterion(out, y.view(n))\n  loss.backward()\n"
        "  seen = loss.item()\n  right = out.argmax(1)\n  pair = split(out)\n"
        "  for part in out:\n    late = part\n"
    )
    values = DeviceValues(source, source.tree.body[-1])
    assert values.derived == {"out", "loss", "right", "pair", "part", "late"}
    assert values.tensors == {"loss", "right"}


CHANGED = """from torch.utils.data import DataLoader
data = Images()
{before}
loader = DataLoader(data, num_workers=2)
for epoch in range(3):
    {within}
    for x in loader:
        step(x)
"""


@pytest.mark.parametrize(
    ("before", "within", "changes"),
    [
        ("data.transform = soft", "pass", False),
        ("data.prepare()", "print(len(data), data.size)", False),
        ("pass", "data.size = 16", True),
        ("pass", "data.size += 16", True),
        ("pass", "data.rows[epoch] = epoch", True),
        ("pass", "data.parts.sizes[0] = epoch", True),
        ("pass", "if epoch == 1: data.transform = strong", True),
        ("pass", "data.resample()", True),
        ("pass", "weights = data.weights()", False),
        ("pass", "other.size = 16", False),
        ("def grow(): data.size = 16", "grow()", True),
    ],
)
def test_what_is_done_to_a_data_set_that_has_a_loader(before: str, within: str, changes: bool) -> None:
    assert changes_its_data(Source(CHANGED.format(before=before, within=within))) is changes
