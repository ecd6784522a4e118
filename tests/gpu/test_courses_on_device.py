"""The courses train on a device as they do on a processor, and photos reach it by hand as by a plain loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))


@pytest.mark.parametrize("course", ["resnet50", "language_model", "small_cnn", "gan"])
def test_a_course_trains(course: str) -> None:
    length = ["--epochs", "2"] if course == "small_cnn" else ["--steps", "3"]
    command = [sys.executable, str(BENCH / "courses" / f"{course}.py"), "--small", *length]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "nan" not in done.stdout and done.stdout.count("\n") >= 1


@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_trainer_trains_the_course(trainer: str) -> None:
    pytest.importorskip({"accelerate": "accelerate", "lightning": "pytorch_lightning"}[trainer])
    trainers = [sys.executable, str(BENCH / "experts" / "trainers.py"), "--course", "resnet50", "--small"]
    command = [*trainers, "--trainer", trainer, "--steps", "5", "--warmup", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f'"expert": "{trainer}"' in done.stdout


def test_photos_by_hand_are_those_of_the_plain_loader(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    import feeders
    import imagenet_feed

    imagenet_feed.make_photos(tmp_path, 32, 2)
    wanted = feeders.Wanted(tmp_path, 16, "cuda", 4)
    means = []
    for batches in (feeders.by_hand(wanted, 2), feeders.plain(wanted, 2)):
        images, labels = next(batches)
        batches.close()
        assert images.shape == (16, 3, 224, 224) and images.is_cuda and labels.is_cuda
        means.append(images.mean(dim=(0, 2, 3)).cpu())
    assert torch.allclose(means[0], means[1], atol=0.3)
