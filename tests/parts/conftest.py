import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernels of a test file's `MODULE`, which run line by line. What they call of Triton's own library was made
    for a GPU when that was imported."""
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if not importlib.import_module("interpreted_loop").can_count():
        pytest.skip("triton's interpreter is too old for this numpy: pip install 'triton>=3.7' or 'numpy<2.4'")
    import triton.language as tl

    monkeypatch.setattr(tl, "sum", lambda given, axis: tl.reduce(given, axis, tl.standard._sum_combine))
    name = request.module.MODULE
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    del sys.modules[name]
