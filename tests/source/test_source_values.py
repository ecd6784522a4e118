"""What expressions are worth, and how often a place in a loop is reached."""

import ast

import pytest

from hotlap.source.calls import ABSENT, UNSURE
from hotlap.source.gates import Often
from hotlap.source.module import Source

PARSER = "import torch, argparse\nparser = argparse.ArgumentParser()\n"


def worth(lines: str):
    """The value of `n` in the last call of torch.f, with `?` where it is only a default."""
    known = list(Source("import torch\n" + lines).calls("torch.f"))[-1].known("n")
    return known if known in (ABSENT, UNSURE) else f"{known.value}{'?' if known.is_default else ''}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("torch.f()", ABSENT),
        ("torch.f(n=-1)", "-1"),
        ("a = 4\nb = a\ntorch.f(n=b)", "4"),
        ("a = 4\na = 5\ntorch.f(n=a)", UNSURE),
        ("a = 4\na += 1\ntorch.f(n=a)", UNSURE),
        ("def g(a=4):\n    torch.f(n=a)", "4?"),
        ("def g(*, a=4, b):\n    torch.f(n=a)", "4?"),
        ("def g(a):\n    torch.f(n=a)", UNSURE),
        ("torch.f(n=1 if cuda else 0)", UNSURE),
        ("torch.f(n=int('4'))", "4"),
        ("torch.f(n=int('four'))", UNSURE),
        ("a = 4\nexec(open('overrides.py').read())\ntorch.f(n=a)", "4?"),
        (PARSER + "parser.add_argument('-j', '--n-w', default=4)\na = parser.parse_args()\ntorch.f(n=a.n_w)", "4?"),
        (PARSER + "parser.add_argument('--w', dest='x', default=4)\na = parser.parse_args()\ntorch.f(n=a.x)", "4?"),
        (PARSER + "parser.add_argument('--w', action='store_true')\ndef g(args):\n    torch.f(n=args.w)", "False?"),
        (PARSER + "parser.add_argument('--w', type=int)\na = parser.parse_args()\ntorch.f(n=a.w)", "None?"),
        (PARSER + "parser.add_argument('--w', default=4)\na = load()\ntorch.f(n=a.w)", UNSURE),
        (PARSER + "parser.add_argument('--w')\nparser.add_argument('--w', default=1)\n"
         "a = parser.parse_args()\ntorch.f(n=a.w)", UNSURE),
        ("class C:\n    w = 4\ntorch.f(n=C.w)", "4"),
        ("class C:\n    w: int = 4\nc = C()\ntorch.f(n=c.w)", "4"),
        ("class C:\n    w: int = 4\nc = C(w=2)\ntorch.f(n=c.w)", "2"),
        ("class C:\n    w: int = 4\nc = C(3)\ntorch.f(n=c.w)", UNSURE),
        ("class C:\n    w: int = 4\nc = C()\nc.w = 7\ntorch.f(n=c.w)", UNSURE),
        ("class C:\n    def __init__(self):\n        self.w = 4\n    def g(self):\n        torch.f(n=self.w)", "4"),
        ("class C:\n    def __init__(self, w):\n        self.w = w\n    def g(self): torch.f(n=self.w)", UNSURE),
        ("def kw():\n    return dict(n=3)\ntorch.f(**kw())", "3"),
        ("def kw():\n    return dict(m=3)\ntorch.f(**kw())", ABSENT),
        ("def kw():\n    d = {}\n    if x:\n        d['n'] = 1\n    return d\ntorch.f(**kw())", UNSURE),
        ("def kw():\n    if x:\n        return {}\n    return {'n': 1}\ntorch.f(**kw())", UNSURE),
        ("a = a.b()\na.c()\ntorch.f(**a.c())", UNSURE),
    ],
)  # fmt: skip
def test_settings_are_worth_what_the_file_says(lines, expected):
    assert worth(lines) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("here()", "ALWAYS"),
        ("with x:\n        try:\n            here()\n        finally:\n            pass", "ALWAYS"),
        ("for y in b:\n        here()", "ALWAYS"),
        ("if i % 10 == 0:\n        here()", "SOMETIMES"),
        ("if 0 == i % args.log:\n        here()", "SOMETIMES"),
        ("if not i % n:\n        here()", "SOMETIMES"),
        ("if (i + 1) % n == 0:\n        here()", "SOMETIMES"),
        ("if i and i % n == 0:\n        here()", "SOMETIMES"),
        ("if is_main and i % n == n - 1:\n        if x:\n            here()", "SOMETIMES"),
        ("if i % n == 0 or i == len(b) - 1:\n        here()", "SOMETIMES"),
        ("if i == 0:\n        here()", "SOMETIMES"),
        ("i % n == 0 and here()", "SOMETIMES"),
        ("i % n or here()", "SOMETIMES"),
        ("x = here() if i % n == 0 else None", "SOMETIMES"),
        ("if i % n:\n        pass\n    else:\n        here()", "SOMETIMES"),
        ("if i % n:\n        continue\n    here()", "SOMETIMES"),
        ("if i % n != 0:\n        continue\n    with x:\n        here()", "SOMETIMES"),
        ("if i % n == 0:\n        pass\n    else:\n        here()", "UNSURE"),
        ("if i % 1 == 0:\n        here()", "UNSURE"),
        ("if i % n == 0 or verbose:\n        here()", "UNSURE"),
        ("if x == 0:\n        here()", "UNSURE"),
        ("if verbose:\n        here()", "UNSURE"),
        ("if verbose:\n        continue\n    here()", "UNSURE"),
        ("if i % n == 0:\n        continue\n    here()", "ALWAYS"),
        ("if verbose:\n        break\n    here()", "ALWAYS"),
        ("if i % n:\n        break\n    here()", "SOMETIMES"),
        ("if scheduler is not None:\n        here()", "ALWAYS"),
        ("if '%d' % i == s:\n        here()", "UNSURE"),
        ("def f():\n        here()", "UNSURE"),
        ("if here() % n == 0:\n        pass", "ALWAYS"),
    ],
)
def test_gates_in_every_spelling(body, expected):
    source = Source(f"for i, x in enumerate(b):\n    {body}\n")
    place = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "here")
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    assert source.how_often(place, loop) is Often[expected]


@pytest.mark.parametrize(("body", "expected"), [("here()", "ALWAYS"), ("if x:\n        here()", "UNSURE")])
def test_gates_of_a_function(body, expected):
    source = Source(f"def f(x):\n    {body}\n")
    place = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "here")
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert source.how_often(place, function) is Often[expected]
