"""Queues are CUDA's to count: told to it alone, before it begins, and only where the user has not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hotlap.parts.device_queues import open_all

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"


def in_c() -> str:
    """What a library, or a program started from here, finds."""
    return subprocess.run(["sh", "-c", f"echo ${NAME}"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="asks a shell")
def test_libraries_find_it_and_the_script_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    undo = open_all()
    assert in_c() == "32" and NAME not in os.environ
    undo()
    assert in_c() == ""


def test_the_users_own_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "1")
    undo = open_all()
    assert in_c() == "1"
    undo()
    assert in_c() == os.environ[NAME] == "1"


def test_not_once_cuda_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    open_all()
    assert in_c() == ""


def test_a_number_that_the_script_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    undo = open_all()
    monkeypatch.setenv(NAME, "1")
    undo()
    assert in_c() == os.environ[NAME] == "1"
