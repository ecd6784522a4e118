"""The witness: lives in a trial's process and takes down what `parity` judges by.

Curves are nearly blind, so steps are forced: at some steps the reference stores its whole state, its gradient and its
update; the candidate is put into that state, its loss and gradient are compared, and its optimizer is fed the
reference's gradient and must make the same update. In between, both run freely and norms are compared. Randomness is
lined up on both sides, and every batch is fingerprinted."""

from __future__ import annotations

import hashlib
import math
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from hotlap.observe.anatomy import Trips
from hotlap.observe.patch import Patch

FORCED_STEPS = (1, 2, 3, 6, 21)
_PROBE_ELEMENTS = 64 << 20  # larger models are compared on an even sample of their gradient, without the probe


class Witness:
    """Lives in the trial; `role` is "reference" or "candidate"."""

    def __init__(self, patch: Patch, folder: str, role: str, seed: int) -> None:
        self._folder, self._role, self._seed = folder, role, seed
        self._joints = patch.joints
        self._step, self._draws, self._epochs = 0, 0, 0
        self._trips = Trips()
        self._forced: dict[str, Any] | None = None  # the reference's record of the step at hand
        self._update_number = self._backward_number = 0
        self._optimizers: list[Any] = []
        self._roots: list[Any] = []
        self._before: list[Any] = []
        self._batches: list[str] = []
        self._losses: list[float] = []
        self._norms: list[list[float]] = []  # step, gradient norm, update norm
        self._figures: list[dict[str, float]] = []
        _seed_all(seed, 0)
        joints = patch.joints
        patch.at(joints.loader_started, self._loader_started)
        patch.at(joints.batch_drawn, self._batch_drawn, depth=-2)
        patch.at(joints.root_found, self._roots.append)
        patch.at(joints.optimizer_built, self._optimizer_built)
        patch.at(joints.loss_known, self._loss_known, depth=-2)
        patch.at(joints.weights_updating, self._weights_updating)
        patch.at(joints.weights_updated, self._weights_updated)
        self._line_up_data(patch)

    def evidence(self) -> dict[str, Any]:
        self._close()
        return {
            "batches": self._batches,
            "losses": self._losses,
            "norms": self._norms,
            "figures": self._figures,
        }

    # lining up ---------------------------------------------------------------------------------------------------

    def _line_up_data(self, patch: Patch) -> None:
        """What a data set draws depends on the items asked for alone, not on which process fetches them, and does
        not move the generators of the training loop."""
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        original: Callable[..., Any] = _MapDatasetFetcher.fetch

        def fetch(fetcher: Any, index: Any) -> Any:
            states = _generator_states()
            _seed_all(self._seed, hashlib.blake2b(repr(index).encode(), digest_size=4).hexdigest())
            try:
                return original(fetcher, index)
            finally:
                _restore(states)

        patch.set(_MapDatasetFetcher, "fetch", fetch)

    def _loader_started(self, loader: Any) -> None:
        self._stepped(self._trips.started(id(loader._index_sampler)))
        self._epochs += 1
        _seed_all(self._seed, f"epoch {self._epochs}")

    # the loop ------------------------------------------------------------------------------------------------------

    def _batch_drawn(self, proceed: Callable[..., Any], iterator: Any) -> Any:
        key = id(iterator._index_sampler)
        self._stepped(self._trips.asked(key))
        try:
            batch = proceed(iterator)
        except StopIteration:
            self._trips.ended(key)
            raise
        self._trips.drew(key)
        self._draws += 1
        self._batches.append(_fingerprint(batch))
        _seed_all(self._seed, self._draws)
        return batch

    def _optimizer_built(self, proceed: Callable[..., Any], optimizer: Any, bound: Any) -> None:
        proceed(optimizer, bound)
        self._optimizers.append(optimizer)

    def _loss_known(self, proceed: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self._stepped(False)
        self._trips.trained()
        if getattr(tensors, "numel", lambda: 0)() == 1:
            self._losses.append(float(tensors))
        out = proceed(tensors, *args, **kwargs)
        if self._forced is not None:
            self._compare_gradients(self._forced["backwards"])
        return out

    def _compare_gradients(self, known: list[dict[str, Any]]) -> None:
        """Right after a backward: what the script does to gradients later, such as clipping, would hide their scale."""
        grads = _gradients([p for optimizer in self._optimizers for p in _parameters(optimizer)])
        if self._role == "reference":
            known.append({"gradient": [g.cpu().clone() for g in grads], "loss": self._losses[-1:]})
        elif self._backward_number < len(known):
            expected = known[self._backward_number]
            theirs = [a.to(b.device) for a, b in zip(expected["gradient"], grads, strict=True)]
            self._figures.append(_compare(theirs, grads, expected["loss"], self._losses[-1:], self._step))
        self._backward_number += 1

    def _weights_updating(self, optimizer: Any) -> None:
        parameters = _parameters(optimizer)
        grads = _gradients(parameters)
        self._before = [p.detach().clone() for p in parameters]
        self._gradient_norm = _norm(grads)
        if self._forced is None:
            return
        if self._role == "reference":
            self._forced["updates"].append({"gradient": [g.cpu().clone() for g in grads]})
        elif self._update_number < len(self._forced["updates"]):
            known = self._forced["updates"][self._update_number]
            for p, g in zip(parameters, known["gradient"], strict=True):  # the optimizer probe
                if p.grad is not None:
                    p.grad.copy_(g)

    def _weights_updated(self, optimizer: Any) -> None:
        parameters = _parameters(optimizer)
        moved = [p.detach() - before for p, before in zip(parameters, self._before, strict=True)]
        if self._forced is None:
            self._norms.append([self._step, self._gradient_norm, _norm(moved)])
        elif self._role == "reference":
            self._forced["updates"][-1]["moved"] = [m.cpu() for m in moved]
        elif self._update_number < len(self._forced["updates"]):
            theirs = [m.to(p.device) for m, p in zip(self._known_moves(), parameters, strict=True)]
            difference = _norm([a - b for a, b in zip(theirs, moved, strict=True)])
            self._figures.append({"step": float(self._step), "update": difference / max(_norm(theirs), 1e-30)})
        self._update_number += 1
        self._stepped(self._trips.updated(id(optimizer)))

    def _known_moves(self) -> Any:
        assert self._forced is not None
        return self._forced["updates"][self._update_number]["moved"]

    # forced steps ------------------------------------------------------------------------------------------------

    def _stepped(self, is_over: bool) -> None:
        """A new step begins when one is over, and with the very first sign of training."""
        if is_over or self._step == 0:
            self._begin_step()

    def _begin_step(self) -> None:
        self._close()
        self._step += 1
        self._update_number = self._backward_number = 0
        if self._step not in FORCED_STEPS or self._elements() > _PROBE_ELEMENTS:
            return
        if self._role == "reference":
            self._forced = {"state": self._state(), "backwards": [], "updates": []}
        else:
            self._forced = self._load()
            if self._forced is not None and self._step > 1:
                self._put_into(self._forced["state"])

    def _close(self) -> None:
        """The forced step is over: the reference writes it down."""
        import torch

        if self._forced is not None and self._role == "reference":
            torch.save(self._forced, os.path.join(self._folder, f"step-{self._step}.pt"))
        self._forced = None

    def _load(self) -> dict[str, Any] | None:
        import torch

        path = os.path.join(self._folder, f"step-{self._step}.pt")
        found: dict[str, Any] | None = torch.load(path, weights_only=False) if os.path.exists(path) else None
        return found

    def _elements(self) -> int:
        return sum(p.numel() for o in self._optimizers for p in _parameters(o))

    def _state(self) -> dict[str, Any]:
        """Weights, buffers and optimizer states, as copies in main memory."""
        return {
            "weights": [[p.detach().cpu().clone() for p in _parameters(o)] for o in self._optimizers],
            "buffers": [[b.detach().cpu().clone() for b in r.buffers()] for r in self._roots],
            "optimizers": [_to_cpu(o.state_dict()) for o in self._optimizers],
        }

    def _put_into(self, state: dict[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for optimizer, weights in zip(self._optimizers, state["weights"], strict=True):
                for p, value in zip(_parameters(optimizer), weights, strict=True):
                    p.copy_(value)
            for root, buffers in zip(self._roots, state["buffers"], strict=False):
                for b, value in zip(root.buffers(), buffers, strict=False):
                    b.copy_(value)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _compare(theirs: Any, ours: Any, their_loss: list[float], our_loss: list[float], step: int) -> dict[str, float]:
    dot = sum(float((a.double() * b.double()).sum()) for a, b in zip(theirs, ours, strict=True))
    norm, own = _norm(theirs), _norm(ours)
    figures = {"step": float(step), "projection": dot / max(norm**2, 1e-60), "cosine": dot / max(norm * own, 1e-60)}
    figures["gradient"] = _norm([a - b for a, b in zip(theirs, ours, strict=True)]) / max(norm, 1e-30)
    if their_loss and our_loss:
        figures["loss"] = abs(our_loss[0] - their_loss[0]) / max(abs(their_loss[0]), 1e-12)
    return figures


def _gradients(parameters: list[Any]) -> list[Any]:
    import torch

    return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]


def _norm(tensors: list[Any]) -> float:
    return math.sqrt(sum(float(t.double().pow(2).sum()) for t in tensors))


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _to_cpu(state: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v, state)


def _fingerprint(batch: Any) -> str:
    """Hash of every tensor in a batch, whatever its structure, device and memory layout."""
    import torch
    from torch.utils._pytree import tree_leaves

    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            plain = leaf.detach().cpu().contiguous()
            digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            digest.update(plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        else:
            digest.update(repr(leaf).encode() if isinstance(leaf, (int, float, str, bool)) else b"?")
    return digest.hexdigest()


def _seed_all(seed: int, about: object) -> None:
    import torch

    number = int.from_bytes(hashlib.blake2b(f"{seed} {about}".encode(), digest_size=4).digest(), "little")
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def _generator_states() -> tuple[Any, ...]:
    import torch

    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def _restore(states: tuple[Any, ...]) -> None:
    import torch

    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])
