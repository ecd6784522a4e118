import sys
from pathlib import Path

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
