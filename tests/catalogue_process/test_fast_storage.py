"""What is said of a folder: the rate it gives, the rate the steps need, and which of them is the larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import fast_storage, find
from hotlap.measure.candidates import Skipped, consider
from hotlap.observe.opened_images import DataFolder
from hotlap.observe.run import Run
from hotlap.parts.storage import ReadRate, Storage


def run(wait: float = 1.0, **known) -> Run:
    """Ten images a step, each step one second beside its wait."""
    parts = [[wait, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 10
    usual = {"images_opened": 100, "steps": 10, "data_folder": "/data/photos"}
    return Run("2.11", "cpu", step_parts=parts, step_seconds=[1.0 + wait] * 10, **{**usual, **known})


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch):
    def planted(rate: float, cached: float | None = 0.0, kind: str = "ext4") -> None:
        monkeypatch.setattr(fast_storage, "storage_of", lambda folder: Storage("/dev/sda1", kind, True))
        monkeypatch.setattr(fast_storage, "read_rate", lambda folder, readers: ReadRate(rate, 2e6, cached))

    return planted


def reason(record: Run) -> str:
    found = consider(find("ssd"), record)
    assert isinstance(found, Skipped)
    return found.reason


def test_both_rates_are_said(disk) -> None:
    disk(900e6)
    assert reason(run()) == (
        "fast enough: /data/photos (a disk that turns (ext4)) reads 900 MB/s past the cache,"
        " and the steps need about 20 MB/s"
    )
    disk(5e6)
    assert reason(run()).startswith("too slow: /data/photos") and "staged" in reason(run())
    disk(5e6, cached=1.0)
    assert "system's cache" in reason(run())


def test_where_there_is_nothing_to_gain_nothing_is_read(disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(5e6)
    monkeypatch.setattr(fast_storage, "read_rate", lambda folder, readers: pytest.fail("read"))
    assert "hardly wait" in reason(run(wait=0.0))
    assert "not known" in reason(run(images_opened=0))
    monkeypatch.setattr(fast_storage, "storage_of", lambda folder: Storage("tmpfs", "tmpfs", None))
    assert "memory (tmpfs)" in reason(run())


def test_the_folder_is_what_the_files_have_in_common(tmp_path: Path) -> None:
    folder = DataFolder()
    folder.opened(tmp_path / "train" / "cat" / "1.jpg")
    assert folder.path == str(tmp_path / "train" / "cat")
    folder.opened(str(tmp_path / "train" / "dog" / "2.jpg"))
    folder.opened(b"neither path nor file")
    with (tmp_path / "3.jpg").open("wb") as file:
        folder.opened(file)
    assert folder.path == str(tmp_path)
