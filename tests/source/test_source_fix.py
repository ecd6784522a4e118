"""Writing techniques into source."""

import ast
import os

import pytest

from hotlap.catalogue import TECHNIQUES, find
from hotlap.errors import HotlapError
from hotlap.source.edits import Edit, insert_argument, replace_node
from hotlap.source.fix import fix_files, fix_source, reached_from, replace_file, rewritten, unified_diff
from hotlap.source.module import Source


class Fixes:
    """Gives every call of torch.f a setting."""

    id = "fixes"
    verbs = ("spot", "rewrite")
    written_last = False
    default = {"n": 1}  # noqa: RUF012

    def __init__(self, fix="safe"):
        self.fix = fix

    def spot(self, source):
        for call in source.calls("torch.f"):
            if not any(keyword.arg == "n" for keyword in call.node.keywords):
                yield source.site(call.node, "message", self.fix)

    def places(self, source, setting):
        return self.spot(source)

    def rewrite(self, site, setting):
        return insert_argument(site.node, f"n={setting['n']}", source=site.source)


class Breaks(Fixes):
    """Writes something that is no Python, but only into the first call."""

    def rewrite(self, site, setting):
        return replace_node(site.source, site.node, ")" if site.line == 2 else "done")


def test_nested_sites_are_all_written_and_a_second_time_changes_nothing():
    new = fix_source(Source("import torch\ntorch.f(torch.f(), torch.f(x))\n"), [(Fixes(), None)])
    assert new == "import torch\ntorch.f(torch.f(n=1), torch.f(x, n=1), n=1)\n"
    assert fix_source(Source(new), [(Fixes(), {"n": 2})]) == new


def test_unsafe_only_when_asked():
    source = Source("import torch\ntorch.f()\n")
    assert fix_source(source, [(Fixes("unsafe"), None)]) == source.text
    assert fix_source(source, [(Fixes("unsafe"), {"n": 2})], unsafe=True) == "import torch\ntorch.f(n=2)\n"
    assert fix_source(source, [(Fixes(None), None)], unsafe=True) == source.text


def test_silenced_sites_stay():
    source = Source("import torch\ntorch.f()  # hotlap: ignore[fixes]\ntorch.f()\n")
    assert fix_source(source, [(Fixes(), None)]) == "import torch\ntorch.f()  # hotlap: ignore[fixes]\ntorch.f(n=1)\n"


def test_a_result_that_does_not_parse_is_left_out():
    new = fix_source(Source("import torch\ntorch.f()\ntorch.f()\n"), [(Breaks(), None)])
    assert new == "import torch\ntorch.f()\ndone\n"


def test_line_maps_go_through_all_passes():
    class Splits(Fixes):
        """One more line at each pass, so that maps have to be joined."""

        def rewrite(self, site, setting):
            end = site.source.lines.span(site.node)[1]
            wanted = ("", "\nfirst()", "\nsecond()")[min(site.source.text.count("()"), 2)]
            return [Edit(end, end, wanted)]

    result = rewritten(Source("import torch\n\ntorch.f()\nlast = 1\n"), [(Splits(), None)])
    lines = result.text.split("\n")
    assert lines.count("first()") == 1 and lines.count("second()") >= 1
    assert {result.lines[number] for number, line in enumerate(lines, 1) if line in ("first()", "second()")} == {3}
    assert result.lines[lines.index("last = 1") + 1] == 4


LOOP = """import torch
from torch import nn

model = nn.Linear(8, 2)
device = "cuda:0"
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)


def train(loader, criterion):
    for epoch in range(3):
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            print(loss.item())
            optimizer.zero_grad()
            (loss / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
"""


def test_half_precision_scales_unscales_and_updates():
    new = fix_source(Source(LOOP), [(find("mixed-precision"), {"dtype": "float16"})], unsafe=True)
    assert (
        new.split("def train")[1]
        == """(loader, criterion):
    scaler = torch.amp.GradScaler(torch.device(device).type)
    for epoch in range(3):
        for x, y in loader:
            with torch.autocast(torch.device(device).type, dtype=torch.float16):
                out = model(x)
                loss = criterion(out, y)
            print(loss.item())
            optimizer.zero_grad()
            (scaler.scale(loss / 2)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
"""
    )


def test_half_precision_without_a_loop_in_sight_says_so():
    text = LOOP.replace("    for epoch in range(3):\n        for x, y in loader:", "    if True:\n        if True:")
    text += "\nfor batch in batches:\n    train(batch, criterion)\n"
    with pytest.raises(HotlapError, match="loop around the step"):
        fix_source(Source(text, "a.py"), [(find("amp"), {"dtype": "float16"})], unsafe=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('device = "cuda:0"', 'device = torch.device("cuda")', "autocast(device.type,"),
        ('device = "cuda:0"', 'device = "cuda" if fast else "cpu"', "autocast(device,"),
        ('device = "cuda:0"', "model.cuda()", 'autocast("cuda",'),
        ('device = "cuda:0"', "", 'autocast("cpu",'),
        ("out = model(x)", "out = model(x.to(args.device))", "autocast(torch.device(args.device).type,"),
        ("import torch\n", "import torch as th\nimport torch\n", "with th.autocast("),
    ],
)
def test_the_device_is_named_as_the_file_names_it(old, new, expected):
    text = fix_source(Source(LOOP.replace(old, new)), [(find("mixed-precision"), None)], unsafe=True)
    assert expected in text


@pytest.mark.parametrize(
    "line",
    ["from torch.amp import autocast", "from apex import amp", "import lightning as L", "nn.BCELoss()", "model.half()"],
)
def test_precision_chosen_elsewhere_in_the_file_is_left_alone(line):
    source = Source(LOOP + line + "\n")
    assert fix_source(source, [(find("mixed-precision"), None)], unsafe=True) == source.text


def test_loader_depth_is_written_with_its_workers():
    text = "from torch.utils.data import DataLoader\nfrom torchvision import datasets as d\n"
    text += "DataLoader(d.MNIST('x'), num_workers=0)\n"
    setting = {"num_workers": 6, "prefetch_factor": 4}
    new = fix_source(Source(text), [(find("num_workers"), setting)], unsafe=True)
    assert new.endswith("num_workers=6, prefetch_factor=4)\n")


def test_cache_limit_and_file_objects():
    text = (
        "import torch\nfrom PIL import Image\n\n\nclass D(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n"
        "        with open(self.paths[i], 'rb') as f:\n            return Image.open(f).convert('RGB')\n"
    )
    new = fix_source(Source(text), [(find("sample-cache"), {"bytes": 1000})], unsafe=True)
    assert "import cached_open, set_limit\nset_limit(1000)\n" in new and "return cached_open(f).convert" in new
    assert new.count("set_limit(") == 1 and fix_source(Source(new), [(find("sample-cache"), {})], unsafe=True) == new


def test_module_moved_by_cuda_gets_its_layout_in_a_call_of_its_own():
    text = (
        "import torch\nnet = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))\nnet = net.cuda()\n"
        "for x, y in loader:\n    net(x.cuda()).sum().backward()\n    opt.step()\nnet.eval()\n"
    )
    new = fix_source(Source(text), [(find("channels-last"), None)], unsafe=True)
    assert "net = net.cuda().to(memory_format=torch.channels_last)\n" in new
    assert "net(x.cuda(memory_format=torch.channels_last))" in new


def test_a_model_that_views_its_features_is_only_reported():
    text = (
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n"
        "        self.c = nn.Conv2d(3, 8, 3)\n    def forward(self, x):\n        return self.c(x).view(1, -1)\n"
        "n = N().to('cuda')\n"
    )
    source = Source(text)
    assert [site.fix for site in find("channels-last").spot(source)] == [None]
    assert [site.fix for site in find("channels-last").spot(Source(text.replace("view", "reshape")))] == ["unsafe"]


def test_all_techniques_together_parse_and_come_to_rest():
    text = LOOP.replace(", foreach=True", "") + (
        "\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        self.c = nn.Conv2d(3, 8, 3)\n\nnet = Net().to(device)\n"
    )
    choices = [(technique, None) for technique in TECHNIQUES]
    result = rewritten(Source(text), choices, unsafe=True)
    ast.parse(result.text)
    assert result.techniques == ("mixed-precision", "channels-last", "fused-optimizer")
    assert fix_source(Source(result.text), choices, unsafe=True) == result.text


def test_unknown_names_get_the_nearest():
    assert find("Fused_Optimizer") is find("fused-optimizer") and find("NUM_WORKERS").id == "loader-workers"
    with pytest.raises(HotlapError, match="did you mean mixed-precision"):
        find("mixed-precison")


def test_diffs_keep_line_endings_and_say_when_the_last_is_missing():
    old, new = "a = 1\nb = 2\r\nc = '\x0c'", "a = 1\nb = 3\r\nc = '\x0c'"
    diff = unified_diff(old, new, "./x/y.py")
    assert diff == (
        "--- a/x/y.py\n+++ b/x/y.py\n@@ -1,3 +1,3 @@\n"
        " a = 1\n-b = 2\r\n+b = 3\r\n c = '\x0c'\n\\ No newline at end of file\n"
    )
    assert unified_diff(old, old, "x") == ""


def test_replace_file_keeps_mode_encoding_bom_and_links(tmp_path):
    path, link = tmp_path / "a.py", tmp_path / "link.py"
    path.write_bytes("\ufeffx = 'é'\r\n".encode())
    path.chmod(0o754)
    link.symlink_to(path)
    replace_file(link, "y = 'é'\r\n")
    assert path.read_bytes() == "\ufeffy = 'é'\r\n".encode() and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o754
    path.write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    replace_file(path, "# coding: latin-1\ny = 'é'\n")
    assert path.read_bytes() == "# coding: latin-1\ny = 'é'\n".encode("latin-1")
    with pytest.raises(HotlapError, match="left as it is"):
        replace_file(path, "# coding: latin-1\ny = '€'\n")
    assert sorted(os.listdir(tmp_path)) == ["a.py", "link.py"]


class Chosen:
    """What `fix_files` takes: a technique with its setting."""

    def __init__(self, technique, setting=None):
        self.technique, self.setting = technique, setting


def fixed(paths, troubles, technique=None):
    choice = Chosen(technique or Fixes())
    found = fix_files([str(path) for path in paths], lambda path: [choice], False, troubles)
    return [os.path.basename(source.path) for source, result in found if result.text != source.text]


def test_nothing_outside_the_given_paths_is_touched(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / f"{folder.name}.py").write_text("import torch\ntorch.f()\n")
    (inside / "link.py").symlink_to(outside / "outside.py")
    (inside / "far").symlink_to(outside, target_is_directory=True)
    troubles = []
    assert fixed([inside], troubles) == ["inside.py"]
    assert len(troubles) == 1 and "leads out of" in troubles[0]
    assert fixed([inside / "link.py"], []) == ["link.py"]  # named itself, it is meant


def test_pyproject_holds_for_fixes_and_stumbling_is_said(tmp_path):
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("import torch\ntorch.f()\n")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.hotlap]\nexclude = ['a.py']\n[tool.hotlap.per-path-ignores]\n'b.py' = ['fixes']\n"
    )
    assert fixed([tmp_path], []) == ["c.py"]

    class Stumbles(Fixes):
        def rewrite(self, site, setting):
            raise KeyError("oh")

    troubles = []
    assert fixed([tmp_path], troubles, Stumbles()) == [] and "c.py was left as it is (KeyError" in troubles[0]


def test_what_parses_but_does_not_compile_is_left_out():
    class TooEarly(Fixes):
        def rewrite(self, site, setting):
            return [Edit(0, 0, "import os\n")]

    text = "from __future__ import annotations\nimport torch\ntorch.f()\n"
    assert fix_source(Source(text), [(TooEarly(), None)]) == text


def test_doubtful_sites_are_never_rewritten():
    class Doubts(Fixes):
        def spot(self, source):
            return (source.site(site.node, "m", "safe", doubtful=True) for site in super().spot(source))

    source = Source("import torch\ntorch.f()\n")
    assert fix_source(source, [(Doubts(), None)], unsafe=True) == source.text


def test_a_script_is_made_of_what_it_imports_from_its_own_project(tmp_path):
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "data.py", "other.py", "pkg/__init__.py", "pkg/net.py"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "train.py").write_text("import os, torch\nfrom data import x\nif x:\n    from pkg import net\n")
    names = {os.path.relpath(path, tmp_path) for path in reached_from(str(tmp_path / "train.py"))}
    assert names == {"train.py", "data.py", "pkg/__init__.py", "pkg/net.py"}
