"""Edits change exactly what they name."""

import ast

import pytest

from hotlap.source.edits import (
    Edit,
    OverlappingEdits,
    add_import,
    apply_edits,
    can_wrap,
    insert_after,
    insert_argument,
    insert_before,
    line_map,
    replace_argument,
    wrap_statements,
)
from hotlap.source.module import Source


def with_argument(text: str, *arguments: str) -> str:
    source = Source("import torch\n" + text)
    call = next(iter(source.calls("torch.f")))
    changed = apply_edits(source.text, insert_argument(call, *(arguments or ("n=1",))))
    ast.parse(changed)
    return changed.removeprefix("import torch\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.f()", "torch.f(n=1)"),
        ("torch.f( )", "torch.f(n=1 )"),
        ("(torch.f)()", "(torch.f)(n=1)"),
        ("torch.f(  # nothing\n)", "torch.f(n=1  # nothing\n)"),
        ("torch.f(a)", "torch.f(a, n=1)"),
        ("torch.f(a, b=2,)", "torch.f(a, b=2, n=1,)"),
        ("torch.f(a, *b)", "torch.f(a, *b, n=1)"),
        ("torch.f(a, **b)", "torch.f(a, **b, n=1)"),
        ("torch.f((a))", "torch.f((a), n=1)"),
        ("torch.f((a), )", "torch.f((a), n=1, )"),
        ("torch.f((a, b))", "torch.f((a, b), n=1)"),
        ("torch.f(b=(a + (c)))", "torch.f(b=(a + (c)), n=1)"),
        ("torch.f(x for x in y)", "torch.f((x for x in y), n=1)"),
        ("torch.f((x for x in y))", "torch.f((x for x in y), n=1)"),
        ("torch.f('é', \"#)\")", "torch.f('é', \"#)\", n=1)"),
        ("torch.f(\n    a, b\n)", "torch.f(\n    a, b, n=1\n)"),
        ("torch.f(\n    a,\n    b\n)", "torch.f(\n    a,\n    b,\n    n=1\n)"),
        ("torch.f(\n    a,\n    b,\n)", "torch.f(\n    a,\n    b,\n    n=1,\n)"),
        ("torch.f(\n    a,\n    b,  # last, (\n)", "torch.f(\n    a,\n    b,  # last, (\n    n=1,\n)"),
        ("torch.f(\n    a,\n    b  # last, )\n)", "torch.f(\n    a,\n    b,  # last, )\n    n=1\n)"),
        ("torch.f(\n    a,\n    b,\n    # end\n)", "torch.f(\n    a,\n    b,\n    n=1,\n    # end\n)"),
        ("torch.f(a,\n        b)", "torch.f(a,\n        b,\n        n=1)"),
        ("torch.f(a,\n        b,)", "torch.f(a,\n        b,\n        n=1,)"),
        ("torch.f(a,\n        b)  # done", "torch.f(a,\n        b,\n        n=1)  # done"),
        ("torch.f(\n    a,\n    g(\n        b\n    ),\n)", "torch.f(\n    a,\n    g(\n        b\n    ),\n    n=1,\n)"),
        ("torch.f(\n    a,\n    (b),\n)", "torch.f(\n    a,\n    (b),\n    n=1,\n)"),
        ("torch.f(\n\ta,\n\tb\n)", "torch.f(\n\ta,\n\tb,\n\tn=1\n)"),
        ("torch.f(a, g(\n    b,\n))", "torch.f(a, g(\n    b,\n), n=1)"),
    ],
)
def test_insert_argument(before, after):
    assert with_argument(before) == after


def test_insert_several_arguments():
    assert with_argument("torch.f(a)", "n=1", "m=2") == "torch.f(a, n=1, m=2)"
    assert with_argument("torch.f(\n    a,\n)", "n=1", "m=2") == "torch.f(\n    a,\n    n=1,\n    m=2,\n)"


def test_crlf_files_stay_crlf():
    source = Source("import torch\r\ntorch.f(\r\n    a,\r\n)\r\nx = 1\r\n")
    call = next(iter(source.calls("torch.f")))
    statement = source.tree.body[-1]
    edits = [
        *insert_argument(call, "n=1"),
        *add_import(source, "import os"),
        *insert_before(source, statement, "a = 1"),
        *insert_after(source, statement, "b = 2"),
        *wrap_statements(source, statement, statement, "with y:"),
    ]
    new = apply_edits(source.text, edits)
    assert new.count("\n") == new.count("\r\n") == 10
    assert "    a,\r\n    n=1,\r\n)" in new and "import torch\r\nimport os\r\n" in new
    assert new.endswith("a = 1\r\nwith y:\r\n    x = 1\r\nb = 2\r\n")


def test_replace_argument_reaches_into_kwargs():
    source = Source("import torch\nkw = {'n': 0}\ntorch.f(**kw)\ntorch.f(a, n=(0))\ntorch.f(a, 0)")
    first, second, third = source.calls("torch.f")
    edits = [*replace_argument(first, "n", "4"), *replace_argument(second, "n", "5")]
    edits += replace_argument(third, "n", "6", position=1)
    assert apply_edits(source.text, edits).split("\n")[1:] == [
        "kw = {'n': 4}", "torch.f(**kw)", "torch.f(a, n=(5))", "torch.f(a, 6)",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not surely given"):
        replace_argument(third, "m", "1")


def test_overlaps_are_refused_and_duplicates_merged():
    assert apply_edits("abcd", [Edit(1, 2, "X"), Edit(1, 2, "X")]) == "aXcd"
    assert apply_edits("abcd", [Edit(2, 2, "1"), Edit(2, 2, "2"), Edit(0, 2, "")]) == "12cd"
    for edits in (
        [Edit(0, 2, "X"), Edit(1, 3, "Y")],
        [Edit(0, 2, "X"), Edit(0, 2, "Y")],
        [Edit(0, 3, ""), Edit(1, 1, "i")],
    ):
        with pytest.raises(OverlappingEdits):
            apply_edits("abcd", edits)


WRAPPED = '''
def f():
    for x in y:
        # before
        a = 1  # one

        text = """first
  second
\tthird"""
        # between
        call(
            b,
        )
        name = f"""{a
        } end
    of it"""
        after()
'''


def test_wrap_leaves_strings_alone():
    source = Source(WRAPPED)
    body = source.tree.body[0].body[0].body
    new = apply_edits(source.text, wrap_statements(source, body[0], body[-2], "with z:"))
    inner = Source(new).tree.body[0].body[0].body
    assert isinstance(inner[0], ast.With) and len(inner) == 2
    assert ast.dump(ast.Module(inner[0].body, [])) == ast.dump(ast.Module(body[:-1], []))
    assert "        # before\n        with z:\n            a = 1  # one\n\n            text" in new
    assert "            # between\n            call(\n                b,\n            )\n" in new


def test_wrap_follows_the_files_indentation():
    tabs = Source("if x:\n\ta = 1\n\tb = (\n\t\t2)\n")
    body = tabs.tree.body[0].body
    assert apply_edits(tabs.text, wrap_statements(tabs, body[0], body[1], "with z:")) == (
        "if x:\n\twith z:\n\t\ta = 1\n\t\tb = (\n\t\t\t2)\n"
    )
    handler = Source("if x:\n  pass\ntry:\n\tpass\nexcept E:\n\ta = 1\n")
    inside = handler.tree.body[1].handlers[0].body[0]
    assert apply_edits(handler.text, wrap_statements(handler, inside, inside, "with z:")).endswith(
        "except E:\n\twith z:\n\t\ta = 1\n"
    )
    two = Source("a = 1\nif x:\n  b = 2\n")
    assert apply_edits(two.text, wrap_statements(two, two.tree.body[0], two.tree.body[0], "with z:")) == (
        "with z:\n  a = 1\nif x:\n  b = 2\n"
    )


@pytest.mark.parametrize("text", ["a = 1; b = 2\nc = 3", "if x: b = 2\nc = 3"])
def test_shared_lines_cannot_be_wrapped(text):
    source = Source(text)
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.Assign) and ast.unparse(n) == "b = 2")
    assert not can_wrap(source, node, node)
    with pytest.raises(ValueError, match="share a line"):
        wrap_statements(source, node, node, "with z:")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", "import a\n\nx = 1\n"),
        ('"""doc"""\nx = 1\n', '"""doc"""\n\nimport a\nx = 1\n'),
        ("#!/usr/bin/python\n# hello\nimport b\nx = 1\n", "#!/usr/bin/python\n# hello\nimport b\nimport a\nx = 1\n"),
        ("from __future__ import c\n\nimport b  # d\nx\n", "from __future__ import c\n\nimport b  # d\nimport a\nx\n"),
        ("from __future__ import annotations\nx\n", "from __future__ import annotations\n\nimport a\nx\n"),
        ("from b import (\n    c,\n)\nx\n", "from b import (\n    c,\n)\nimport a\nx\n"),
        ("import b", "import b\nimport a"),
        ("import a.b\n", "import a.b\n"),
        ("import b, a\n", "import b, a\n"),
        ("import a as c\n", "import a as c\nimport a\n"),
        ("", "import a\n\n"),
    ],
)
def test_add_import(before, after):
    source = Source(before)
    new = apply_edits(before, add_import(source, "import a"))
    assert new == after
    assert apply_edits(new, add_import(Source(new), "import a")) == new


def test_add_from_import_once():
    source = Source("from a import b, c\n")
    assert add_import(source, "from a import b") == []
    assert add_import(source, "from a import d") != []
    assert add_import(source, "from .a import b") != []


WANTED = [  # what one site after the other wants, and what is written for all of them
    (("from a import b", "from a import b, c"), "from a import b, c\nx\n"),
    (("from a import b, c", "from a import b", "from a import c"), "from a import b, c\nx\n"),
    (("from a import b", "from d import b, c"), "from a import b\nfrom d import b, c\nx\n"),
    (("from z import w, b as c", "from z import b as c"), "from z import b as c\nx\n"),
]


@pytest.mark.parametrize(("wanted", "after"), WANTED)
def test_what_several_sites_import_is_imported_once(wanted, after):
    source = Source("from z import w\nx\n")
    edits = [edit for statement in wanted for edit in add_import(source, statement)]
    assert apply_edits(source.text, edits) == f"from z import w\n{after}"


def test_insert_round_statements_that_share_a_line():
    source = Source("if x: a = 1\nb = 2; c = 3  # end\n@d\ndef g():\n    pass\n")
    inner = source.tree.body[0].body[0]
    _, second, third, function = source.tree.body
    edits = [*insert_before(source, inner, "p()"), *insert_after(source, inner, "q()")]
    edits += [*insert_after(source, second, "r()"), *insert_after(source, third, "s()")]
    edits += [*insert_before(source, function, "t()"), *insert_after(source, function, "u()")]
    assert apply_edits(source.text, edits) == (
        "if x: p(); a = 1; q()\nb = 2; r(); c = 3; s()  # end\nt()\n@d\ndef g():\n    pass\nu()\n"
    )


def test_line_map_names_the_line_each_new_line_came_from():
    text = "import a\nx = 1\ny = 2\nz = 3\n"
    source = Source(text)
    _, x, y, z = source.tree.body
    edits = [*add_import(source, "import b"), *wrap_statements(source, x, y, "with c:")]
    edits += insert_after(source, z, "w = 4\nv = 5")
    new = apply_edits(text, edits).split("\n")
    assert new == ["import a", "import b", "with c:", "    x = 1", "    y = 2", "z = 3", "w = 4", "v = 5", ""]
    assert line_map(text, edits) == {1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 4, 7: 4, 8: 4, 9: 5}


def test_line_map_where_lines_vanish():
    text = "a = (1,\n     2)\nb = 3\n"
    assert line_map(text, [Edit(0, 14, "a = 0")]) == {1: 1, 2: 3, 3: 4}
