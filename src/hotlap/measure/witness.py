"""The witness: lives in a trial's process and takes down what `parity` judges by.

Curves are nearly blind, so steps are forced: at some steps the reference stores its whole state, its gradient and its
update; the candidate is put into that state, its loss and gradient are compared, and its optimizer is fed the
reference's gradient and must make the same update. In between, both run freely and norms are compared. Randomness is
lined up on both sides, every batch is fingerprinted, and settings are noted in every step. A training that draws at
random ends with several draws at one state. Weights that the script updates by hand are followed like an optimizer's.
A run of the script with weights shaken at forced steps shows what rounding alone may do to its gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hotlap.measure import census, prints, states
from hotlap.measure.by_hand import HandFinder
from hotlap.measure.draws import Draws
from hotlap.measure.lineup import Lineup
from hotlap.measure.order import Role
from hotlap.measure.states import gradients, norm, parameters
from hotlap.observe.patch import Patch
from hotlap.observe.trips import Trips

FORCED_STEPS = (1, 2, 3, 6, 12, 18, 21)  # most of them when what starts late, like compiling, is at work
SHAKEN_BY = 2.0**-8  # of each weight: by trial, that moves gradients about as far as bf16 does
_PROBE_ELEMENTS = 64 << 20  # larger models are compared by batches, losses and norms alone


class Witness:
    """Watches so many steps. A reference stores what candidates are held against; a run with another seed only shows
    how far losses are apart by chance."""

    def __init__(self, patch: Patch, folder: str, role: Role, seed: int, steps: int) -> None:
        self._folder, self._role, self._steps = folder, role, steps
        self._lineup = Lineup(patch, seed, shifted=role == "other seed")
        self._step, self._drawn, self._epochs = 0, 0, 0
        self._trips = Trips()
        self._sources: dict[int, int] = {}  # by loader its data set, which outlives loaders built for each epoch
        self._forced: dict[str, Any] | None = None  # the reference's record of the step at hand
        self._draws = Draws(folder, role == "reference")
        self._is_drawing = self._draws_in_forward = False
        self.is_done = False
        self._update_number = self._backward_number = 0
        self._optimizers: list[Any] = []
        self._hand = HandFinder()
        self._roots: list[Any] = []
        self._before: list[Any] = []
        self._batches: list[str] = []
        self._sketches: list[list[Any]] = []
        self._epoch_ends: list[int] = []  # after how many batches
        self._losses: list[float] = []
        self._norms: list[list[float]] = []  # step, gradient norm, update norm
        self._figures: list[dict[str, float]] = []
        self._settings: census.Census = {}
        self._census: list[census.Census] = []  # for each step what changed since the one before
        joints = patch.joints
        patch.at(joints.loader_started, self._loader_started)
        patch.at(joints.batch_drawn, self._batch_drawn, depth=-2)
        patch.at(joints.root_found, self._roots.append)
        patch.at(joints.root_called, self._root_called, depth=-2)
        patch.at(joints.optimizer_built, self._optimizer_built)
        patch.at(joints.loss_known, self._loss_known, depth=-2)
        patch.at(joints.weights_updating, self._weights_updating)
        patch.at(joints.weights_updated, self._weights_updated)

    def evidence(self) -> dict[str, Any]:
        self._updated_by_hand()
        self._close()
        self._draws.close()
        return {
            "batches": self._batches,
            "sketches": self._sketches,
            "epoch_ends": self._epoch_ends,
            "losses": self._losses,
            "norms": self._norms,
            "figures": self._figures,
            "census": self._census,
            "draws": self._draws.losses,
            "along": self._draws.along,
        }

    # the loop ------------------------------------------------------------------------------------------------------

    def _loader_started(self, loader: Any) -> None:
        self._updated_by_hand()
        self._stepped(self._trips.started(id(loader._index_sampler)))
        self._epochs += 1
        self._lineup.seed(f"epoch {self._epochs}")

    def _batch_drawn(self, proceed: Callable[..., Any], iterator: Any) -> Any:
        self._updated_by_hand()
        key = id(iterator._index_sampler)
        self._stepped(self._trips.asked(key))
        try:
            batch = proceed(iterator)
        except StopIteration:
            self._trips.ended(key)
            if not self._is_drawing:
                self._epoch_ends.append(len(self._batches))
            raise
        self._trips.drew(key)
        self._drawn += 1
        if not self._is_drawing:
            batch = self._noted(batch)
        self._sources[key] = id(iterator._dataset)
        if self._is_drawing and self._sources[key] in {self._sources[trainer] for trainer in self._trips.trainers}:
            batch = self._draws.batch(batch)
        self._lineup.seed(f"draw {self._draws.number}" if self._is_drawing else self._drawn)
        self._lineup.mark()
        return batch

    def _noted(self, batch: Any) -> Any:
        """Not while drawing: how far that goes is no part of the training, and may differ where the script ends."""
        self._batches.append(prints.fingerprint(batch))
        self._sketches.append(prints.sketch(batch))
        return batch if self._forced is None else self._forced_batch(batch, self._forced["batches"])

    def _forced_batch(self, batch: Any, known: list[tuple[str, Any]]) -> Any:
        """Pixels that differ by rounding have been judged by their print: what is forced starts from the same."""
        own = self._batches[-1]
        if self._role == "reference":
            known.append((own, prints.kept(batch)))
        elif known:
            theirs, floats = known.pop(0)
            batch = batch if own == theirs else prints.with_floats_of(batch, floats)
        return batch

    def _root_called(self, proceed: Callable[..., Any], root: Any, args: Any, kwargs: Any) -> Any:
        """Where the script makes its batches itself, by generators that each step starts alike, draws begin here."""
        self._updated_by_hand()
        if not self._trips.trainers and self._step > 1:
            if self._is_drawing and self._draws.fed(prints.fingerprint((args, kwargs))):
                self._lineup.seed(f"draw {self._draws.number}")
            self._lineup.mark()
        return proceed(root, args, kwargs)

    def _optimizer_built(self, proceed: Callable[..., Any], optimizer: Any, bound: Any) -> None:
        proceed(optimizer, bound)
        self._updated_by_hand()
        self._hand.give_way(self._optimizers)
        self._optimizers.append(optimizer)

    def _loss_known(self, proceed: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self._stepped(False, after_forward=True)
        self._trips.trained()
        loss = [float(tensors.detach())] if getattr(tensors, "numel", lambda: 0)() == 1 else []
        self._note(census.modules(self._roots))
        if self._role == "reference" and self._forced is not None:
            self._draws_in_forward |= self._lineup.has_moved
        out = proceed(tensors, *args, **kwargs)
        if self._is_drawing:
            self._draws.went_back(loss, gradients(self._all_parameters()))
        else:
            self._losses += loss
            if self._forced is not None:
                self._compare_gradients(self._forced["backwards"], loss)
        self._hand.look(self._optimizers, self._roots)
        if self._hand.found is not None:
            self._weights_updating(self._hand.found)
            self._hand.found.is_at_work = True
        return out

    def _compare_gradients(self, known: list[dict[str, Any]], loss: list[float]) -> None:
        """Right after a backward: what the script does to gradients later, such as clipping, would hide their scale."""
        grads = gradients(self._all_parameters())
        if self._role == "reference":
            known.append({"gradient": [g.cpu().clone() for g in grads], "loss": loss})
        elif grads and self._backward_number < len(known):  # who updates by hand is not known from the start
            expected = known[self._backward_number]
            theirs = [a.to(b.device) for a, b in zip(expected["gradient"], grads, strict=True)]
            self._figures.append(_compare(theirs, grads, expected["loss"], loss, self._step))
        self._backward_number += 1

    def _weights_updating(self, optimizer: Any) -> None:
        trained = parameters(optimizer)
        grads = gradients(trained)
        self._before = [p.detach().clone() for p in trained]
        self._gradient_norm = norm(grads)
        if optimizer in self._optimizers:
            self._note(census.optimizer(self._optimizers.index(optimizer), optimizer))
        if self._forced is None:
            return
        if self._role == "reference":
            self._forced["updates"].append({"gradient": [g.cpu().clone() for g in grads]})
        elif self._update_number < len(self._forced["updates"]):
            known = self._forced["updates"][self._update_number]
            for p, g in zip(trained, known["gradient"], strict=True):  # the optimizer probe
                if p.grad is not None:
                    p.grad.copy_(g)

    def _weights_updated(self, optimizer: Any) -> None:
        if not self._is_drawing:
            self._take_down_update(parameters(optimizer))
        self._update_number += 1
        self._stepped(self._trips.updated(id(optimizer)))

    def _updated_by_hand(self) -> None:
        hand = self._hand.found
        if hand is not None and hand.is_at_work:
            hand.is_at_work = False
            self._weights_updated(hand)

    def _take_down_update(self, trained: list[Any]) -> None:
        moved = [p.detach() - before for p, before in zip(trained, self._before, strict=True)]
        if self._forced is None:
            self._norms.append([self._step, self._gradient_norm, norm(moved)])
        elif self._role == "reference":
            self._forced["updates"][-1]["moved"] = [m.cpu() for m in moved]
        elif self._update_number < len(known := self._forced["updates"]):
            theirs = [m.to(p.device) for m, p in zip(known[self._update_number]["moved"], trained, strict=True)]
            difference = norm([a - b for a, b in zip(theirs, moved, strict=True)])
            self._figures.append({"step": float(self._step), "update": difference / max(norm(theirs), 1e-30)})

    # forced steps ------------------------------------------------------------------------------------------------

    def _stepped(self, is_over: bool, after_forward: bool = False) -> None:
        """A new step begins when one is over, and with the very first sign of training; without a loader, that is a
        loss."""
        if is_over or self._step == 0:
            self._begin_step(after_forward)

    def _begin_step(self, after_forward: bool) -> None:
        self._close()
        self._step += 1
        self._update_number = self._backward_number = 0
        self._census.append({})
        if self._step > 1 and not self._trips.trainers:
            self._lineup.seed(f"step {min(self._step, self._steps + 1)}")  # no draw from a loader will do it
        if self._step > self._steps:
            self._draw_again()
        elif self._step in FORCED_STEPS and self._role != "other seed" and self._can_take_states:
            self._force(after_forward)

    def _force(self, after_forward: bool) -> None:
        if self._role == "reference":
            self._forced = {
                "state": states.take(self._optimizers, self._roots),
                "batches": [],
                "backwards": [],
                "updates": [],
            }
        else:
            self._forced = self._load()
            if self._forced is not None and self._step > 1:
                states.put_back(self._forced["state"], self._optimizers, self._roots)
            if self._forced is not None and self._role == "shaken" and not after_forward:  # or backward would fail
                states.shake(self._optimizers, SHAKEN_BY, self._step)

    def _draw_again(self) -> None:
        """A step of the draws begins, where they have a point: the reference draws too."""
        if not self._is_drawing:
            has_point = self._role == "candidate" or self._draws_in_forward
            self._is_drawing = has_point and self._can_take_states and self._draws.start(self._optimizers, self._roots)
        self.is_done = not self._is_drawing or not self._draws.next(self._optimizers, self._roots)

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

    @property
    def _can_take_states(self) -> bool:
        return bool(sum(p.numel() for p in self._all_parameters()) <= _PROBE_ELEMENTS)

    def _all_parameters(self) -> list[Any]:
        return [p for optimizer in self._optimizers for p in parameters(optimizer)]

    def _note(self, settings: census.Census) -> None:
        if self._census:
            self._census[-1] |= {name: value for name, value in settings.items() if self._settings.get(name) != value}
            self._settings |= settings


def _compare(theirs: Any, ours: Any, their_loss: list[float], our_loss: list[float], step: int) -> dict[str, float]:
    along, length, own = states.dot(theirs, ours), norm(theirs), norm(ours)
    figures = {"step": float(step), "projection": along / max(length**2, 1e-60)}
    figures["cosine"] = along / max(length * own, 1e-60)
    figures["length"] = states.length_ratio(theirs, ours)
    figures["gradient"] = norm([a - b for a, b in zip(theirs, ours, strict=True)]) / max(length, 1e-30)
    if their_loss and our_loss:
        figures["loss"] = abs(our_loss[0] - their_loss[0]) / max(abs(their_loss[0]), 1e-12)
    return figures
