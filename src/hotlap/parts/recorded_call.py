"""One call of a module, recorded: its forward and its backward as two graphs in memory of their own.

A graph reads and writes fixed places. Inputs and output gradients are copied to where it reads them, and outputs are
copied before they are handed out. Gradients of parameters are lent: a parameter's `grad` is the very place the graph
writes to, unless somebody still holds the last ones when the next come."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hotlap.parts.graph_recorder import Recorder
from hotlap.parts.packed import Packed, Packing, form_of

Proceed = Callable[[Any, Any, Any], Any]
Found = list[torch.Tensor | None]


class CannotRecord(Exception):
    """Says why, in words for the user."""


class PlainCall:
    """A call as the script makes it, that can be made again, also with stand-ins for the parameters: tensors of the
    same memory whose gradients go nowhere else. A parameter's own node in autograd may belong to another stream."""

    def __init__(self, proceed: Proceed, root: nn.Module, packing: Packing, device: torch.device) -> None:
        self._proceed, self._root, self._packing, self.device = proceed, weakref.ref(root), packing, device
        self.parameters = [p for p in root.parameters() if p.requires_grad]
        self.buffers = list(root.buffers())
        norms = (m for m in root.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.training)
        statistics = {id(b) for norm in norms for b in norm.buffers()}
        self.is_statistic = [id(b) in statistics for b in self.buffers]  # written in training, but not read
        self._autocast = (torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type))

    def __call__(self, tensors: Sequence[torch.Tensor], stand_ins: Sequence[torch.Tensor] | None = None) -> Packed:
        """Without autocast's cache of cast weights, which a recording must not come to own."""
        root = self._root()
        if root is None:
            raise RuntimeError("the module that this backward belongs to is gone")
        is_enabled, dtype = self._autocast
        instead = {} if stand_ins is None else dict(zip(map(id, self.parameters), stand_ins, strict=True))
        with (
            torch.enable_grad(),
            torch.autocast(self.device.type, dtype=dtype, enabled=is_enabled, cache_enabled=False),
            _standing_in(root, instead),
        ):
            return Packed(self._proceed(root, *self._packing.filled(tensors)))

    def stand_ins(self) -> list[torch.Tensor]:
        return [nn.Parameter(p.detach()) for p in self.parameters]


class State:
    """A module's buffers and the random numbers of its device, taken down and put back."""

    def __init__(self, plain: PlainCall) -> None:
        self._buffers, self._generator = plain.buffers, generator_of(plain.device)
        self.values = [b.detach().clone() for b in plain.buffers]
        self.random = self._generator.get_state()

    def put_back(self) -> None:
        """By `data`: autograd has running means among what it saved, and would take them for changed."""
        copy([b.data for b in self._buffers], self.values)
        self._generator.set_state(self.random)


class Ticket:
    """A forward that was replayed. As long as its backward may come, the graph's memory is spoken for."""

    def __init__(self) -> None:
        self.is_out = True
        self.judge: Callable[[Found, Sequence[Any]], Found] | None = None  # of the gradients, before they are trusted


class RecordedCall:
    """Recorded when it is made, which carries nothing out. `wanted`: the outputs that a backward comes from."""

    def __init__(
        self, recorder: Recorder, plain: PlainCall, tensors: Sequence[torch.Tensor], wanted: frozenset[int]
    ) -> None:
        self.plain, self.wanted, self.replays = plain, wanted, 0
        self.proven = 0  # replays whose gradients were held against the plain call's
        self.is_repeatable = True  # without the values that buffers had before
        self._lends = True
        self._ticket: weakref.ref[Ticket] | None = None
        self._places = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        self._record(recorder)
        self._alone = max((_holders(grad) for grad in self._grads if grad is not None), default=0)

    def _record(self, recorder: Recorder) -> None:
        plain, stand_ins, made = self.plain, self.plain.stand_ins(), list[torch.Tensor]()
        inputs = [place for place in self._places if place.requires_grad]
        versions = [b._version for b in plain.buffers]

        def forward() -> list[torch.Tensor]:
            outputs = plain(self._places, stand_ins)
            made[:], self.packing = outputs.tensors, outputs.packing
            self.form = form_of(outputs)
            return [t.detach() for t in made]

        self._forward, self._outs = recorded_work(recorder, forward, plain.device)
        self.needs_grad = [t.requires_grad for t in made]
        self._touched = [b for b, version in zip(plain.buffers, versions, strict=True) if b._version != version]
        if not all(self.needs_grad[number] for number in self.wanted):
            raise CannotRecord("what carries gradients is not always the same")
        if any(map(_lie_apart, stand_ins, plain.parameters)):
            raise CannotRecord("it moves its parameters")
        _check_leaves(made, [*inputs, *stand_ins])
        given: Found = [torch.zeros_like(t) if n in self.wanted else None for n, t in enumerate(self._outs)]
        # Outside the graphs' own memory, parts of which the next forward writes to.
        kept = [torch.empty_like(p, requires_grad=False) for p in plain.parameters]

        def backward() -> Found:
            found = gradients(made, given, [*inputs, *stand_ins])
            if any(grad is not None and grad.layout is not torch.strided for grad in found):
                raise CannotRecord("its gradients are sparse")
            own = list(zip(kept, found[len(inputs) :], strict=True))
            self._grads: Found = [None if grad is None else place for place, grad in own]
            copy([place for place, grad in own if grad is not None], [grad for _, grad in own if grad is not None])
            return found[: len(inputs)]

        self._given = [grad for grad in given if grad is not None]
        self._backward, self._input_grads = recorded_work(recorder, backward, plain.device)
        made.clear()

    @property
    def is_free(self) -> bool:
        ticket = None if self._ticket is None else self._ticket()
        return ticket is None or not ticket.is_out

    def __call__(self, tensors: Sequence[torch.Tensor], ticket: Ticket) -> list[torch.Tensor]:
        self._ticket = weakref.ref(ticket)
        apply: Any = _Replayed.apply
        return list(apply(self, ticket, *tensors, *self.plain.parameters))

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        copy(self._places, tensors)
        self._forward()
        if self._touched:
            torch.autograd.graph.increment_version(self._touched)
        self.replays += 1
        return [t.clone() for t in self._outs]

    def backward(self, given: Sequence[torch.Tensor | None]) -> Found:
        """Who still holds gradients of an earlier backward, such as a script that adds up several, keeps them: they
        are put back after the replay, and from then on copies are handed out."""
        copy(self._given, [grad for grad in given if grad is not None])
        places = [grad for grad in self._grads if grad is not None]
        held = [grad for grad in places if _holders(grad) > self._alone]
        older = _copies(held)
        self._backward()
        found: Found = [None if grad is None else grad.clone() for grad in self._input_grads]
        self._lends = self._lends and not held
        if self._lends:
            return [*found, *(None if grad is None else grad.detach() for grad in self._grads)]
        fresh = iter(_copies(places))
        copy(held, older)
        return [*found, *(None if grad is None else next(fresh) for grad in self._grads)]

    def again(self, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None], random: Any) -> Found:
        """What no recording is there for, such as gradients of gradients or a second backward: the forward is made
        once more, plainly and as it was, and backward goes through that."""
        if not self.is_repeatable:
            raise RuntimeError("hotlap: a backward came that was not recorded, and the module has changed since")
        inputs, state = tensors[: len(self._places)], State(self.plain)
        generator_of(self.plain.device).set_state(random)
        try:
            outputs = self.plain(inputs).tensors
        finally:
            state.put_back()
        targets = [*(t for t in inputs if t.requires_grad), *self.plain.parameters]
        return gradients(outputs, given, targets, create_graph=torch.is_grad_enabled())


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: RecordedCall, ticket: Ticket, *tensors: torch.Tensor) -> Any:
        ctx.call, ctx.ticket, ctx.random = call, ticket, generator_of(call.plain.device).get_state()
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        outs = call.forward(tensors[: len(tensors) - len(call.plain.parameters)])
        ctx.mark_non_differentiable(*(t for t, needs in zip(outs, call.needs_grad, strict=True) if not needs))
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        call, ticket = ctx.call, ctx.ticket
        came = frozenset(number for number, grad in enumerate(given) if grad is not None)
        if ticket.is_out and came == call.wanted and not torch.is_grad_enabled():
            found = call.backward(given)
            ticket.is_out = False
            if ticket.judge is not None:
                found = ticket.judge(found, given)
        else:
            found = call.again(ctx.saved_tensors, given, ctx.random)
        left = iter(found)
        return None, None, *(next(left) if needs else None for needs in ctx.needs_input_grad[2:])


def gradients(
    outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None], targets: Any, create_graph: bool = False
) -> Found:
    pairs = [(t, grad) for t, grad in zip(outputs, given, strict=True) if grad is not None and t.requires_grad]
    roots, grads = zip(*pairs, strict=True) if pairs else ((), ())
    if not targets or not roots:
        return [None] * len(targets)
    return list(torch.autograd.grad(roots, targets, grads, create_graph=create_graph, allow_unused=True))


@torch.no_grad()
def copy(places: Sequence[torch.Tensor] = (), values: Sequence[torch.Tensor] = ()) -> None:
    if places:
        torch._foreach_copy_(list(places), list(values))


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    made = [torch.empty_like(t) for t in tensors]
    copy(made, tensors)
    return made


def generator_of(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def recorded_work(
    recorder: Recorder, work: Callable[[], Any], device: torch.device
) -> tuple[Callable[[], object], Any]:
    """What repeats the work, and the results it writes each time. A forward that enters autocast by itself may keep the
    casts of weights: earlier ones must not be recorded, and those made now are not there before a replay."""
    results: list[Any] = []

    def update() -> Any:
        made = work()
        if not results:
            results.append(made)
        return made

    torch.clear_autocast_cache()
    try:
        return recorder.record(update, device), results[0]
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _standing_in(root: nn.Module, instead: dict[int, Any]) -> Iterator[None]:
    """Recurrent layers also list their parameters, and move them together in memory when one is another."""
    changed: list[tuple[Any, Any, Any]] = []

    def put(container: Any, name: Any, value: Any) -> None:
        changed.append((container, name, container[name]))
        container[name] = value

    try:
        for module in root.modules() if instead else ():
            flat, references = (vars(module).get(name, ()) for name in ("_flat_weights", "_flat_weight_refs"))
            for number, reference in enumerate(references):
                if reference is not None and id(reference()) in instead:
                    put(references, number, weakref.ref(instead[id(reference())]))
            held: list[tuple[Any, Any]] = [(module._parameters, name) for name in module._parameters]
            for container, name in (*held, *((flat, number) for number in range(len(flat)))):
                if id(container[name]) in instead:
                    put(container, name, instead[id(container[name])])
        yield
    finally:
        for container, name, value in changed:
            container[name] = value


def _check_leaves(outputs: Sequence[torch.Tensor], known: Sequence[torch.Tensor]) -> None:
    """Backward may lead to what we know of, and to nothing else: it would go without its gradient."""
    ids, seen = {id(tensor) for tensor in known}, set[Any]()
    left = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in ids:
            raise CannotRecord("it works with a tensor that needs gradients and is none of its parameters")
        left += [one for one, _ in node.next_functions if one is not None]


def _lie_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() != other.data_ptr()


def _holders(tensor: torch.Tensor) -> int:
    """How many share its memory; one more while it is asked."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
