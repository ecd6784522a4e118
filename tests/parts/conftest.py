import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the copier beside the tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from deferred_photos import write_photos

    found = tmp_path_factory.mktemp("photos")
    write_photos(found)
    return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch):
    """A process whose loaders are taken over."""
    from taken_loaders import Taken
    from torch.utils.data import DataLoader

    found, start = Taken(), DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: (found.batches.starts(loader), start(loader))[1])
    yield found
    found.batches.leave()


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch):
    """What a loader gives that is left alone."""
    from taken_loaders import drawn
    from torch.utils.data import DataLoader

    start = DataLoader.__iter__

    def run(*args, **kwargs):
        with monkeypatch.context() as context:
            context.setattr(DataLoader, "__iter__", start)
            return drawn(*args, **kwargs)

    return run


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that was compiled before, and the same random numbers."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernels of a test file's `MODULE`, and of those `BESIDE` it, which run line by line. What they call of
    Triton's own library was made for a GPU when that was imported."""
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if not importlib.import_module("interpreted_loop").can_count():
        pytest.skip("triton's interpreter is too old for this numpy: pip install 'triton>=3.7' or 'numpy<2.4'")
    import triton.language as tl

    monkeypatch.setattr(tl, "sum", lambda given, axis: tl.reduce(given, axis, tl.standard._sum_combine))
    names = [request.module.MODULE, *getattr(request.module, "BESIDE", ())]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(names[0])
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def compiled_for_a_gpu() -> Callable[..., str]:
    """`compiled_for_a_gpu(module, name, types, constants)`: what a kernel becomes for one, which needs none. Sizes, and
    tensors of unknown type, are what they mostly are."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    def code(module: str, name: str, types: dict[str, str], constants: dict[str, Any]) -> str:
        kernel = getattr(importlib.import_module(module), name)
        kernel = kernel.fn if isinstance(kernel, triton.runtime.Autotuner) else kernel
        names = kernel.arg_names
        known = {one: value for one, value in constants.items() if one in names}
        types = {"rows": "i32", "channels": "i32"} | types
        signature = {one: "constexpr" if one in known else types.get(one, "*fp32") for one in names}
        even = {(names.index(one),): [["tt.divisibility", 16]] for one in names if one not in known and one != "rows"}
        source = triton.compiler.ASTSource(kernel, signature, known, even)
        return str(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])

    return code
