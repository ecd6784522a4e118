"""Loader workers that live on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.calls import ABSENT, UNSURE, Call
from hotlap.source.edits import Edit, insert_argument
from hotlap.source.loops import loops_around
from hotlap.source.origins import given_anywhere, makers
from hotlap.source.transfers import Draw, changes_its_data, draws, opens_two_passes
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

LOADER = "torch.utils.data.DataLoader"
NUM_WORKERS = 5  # its position among DataLoader's parameters
_COUNTS = ("os.cpu_count", "multiprocessing.cpu_count")


class PersistentWorkers(Technique):
    """Loader workers are started once and live through all epochs and validation passes, not once for each.

    ## Why it is faster
    Every `for batch in loader` starts `num_workers` processes, each of which copies the data set, and ends them when
    the pass is over. The first batch of every epoch waits for that, and so does the first of every validation. With
    `persistent_workers=True` the processes stay and begin to load ahead at once.

    ## When it does not help
    Long epochs: a start of a second is nothing beside an hour. A loader that is iterated once. It spends memory: the
    workers of the training loader stay while those of the validation loader work. The fix is marked unsafe, since the
    workers keep the data set they were started with: one that is changed between epochs (`dataset.set_epoch`), or a
    `collate_fn` that is, would not be seen to change, and where batches are tensors that it holds, what the script
    writes into them would come back, as would what reading does to it, where it counts or works in place. In a run
    with hotlap all that is noticed, and they are started anew. Nor does torch have more than one iterator of them: a
    file that opens two at once, as in `zip(loader, loader)`, is left alone. In a run with hotlap the second one gets
    workers of its own.

    ## What changes numerically
    Torch draws one seed less from its generator for every epoch, so the written fix shuffles later epochs otherwise
    for the same seed: other draws of the same distribution. Applied by hotlap, the order stays as it was and, where
    the data set draws nothing at random, every batch is the same; random augmentation goes on with each worker's
    generator where torch would seed it anew.

    ## Claims
    No figure is claimed for it, although well-known scripts start all their workers again at every validation.
    The gain is the start, a fixed time an epoch: it must be read against the length of one. `persistent_workers=True`
    with `num_workers=0` raises.
    """

    family = Family.WAIT
    aliases = ("persistent_workers",)
    between_steps = True

    def parity(self, run: Run | None) -> Parity:
        certain = run is not None and all(loader.draws_random is False for loader in run.loaders if loader.trains)
        return Parity.IDENTICAL if certain else Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        if not any(source.calls(LOADER)) or changes_its_data(source) or opens_two_passes(source):
            return
        passes = [(draw, makers(source, draw.loader, LOADER) or []) for draw in draws(source)]
        for call in source.calls(LOADER):
            number = _number(call)
            if number is None or _is_chosen(call) or not _is_iterated_again(call, passes):
                continue
            message = "all workers are started anew for every pass; persistent_workers keeps them"
            yield source.site(call.node, message, "unsafe" if number[0] is source else None)

    def seen(self, run: Run) -> bool | None:
        having = [loader.persistent_workers for loader in run.loaders if loader.trains and loader.num_workers]
        return all(having) if having else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        training = [loader for loader in run.loaders if loader.trains and loader.num_workers]
        if not training:
            return CannotHelp("no training loader with workers was seen")
        if len(run.epoch_starts) < 2:
            return CannotHelp("no second epoch was seen")
        if all(loader.changes for loader in training):
            return CannotHelp("its data set changes while it is read, so its workers must be started anew")
        return [Try({}, run.epoch_start_share)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.dataset_state import dataset_state
        from hotlap.parts.lasting_workers import LastingWorkers

        lasting = LastingWorkers(dataset_state)

        def built(proceed: Any, loader: Any, bound: Any) -> None:
            chosen = bound.arguments
            is_new = chosen["num_workers"] > 0 and not chosen["persistent_workers"]
            if is_new:
                chosen["persistent_workers"] = True
                lasting.keep(loader)
            proceed(loader, bound)

        patch.at(patch.joints.loader_built, built, depth=1)  # after those who give a loader its workers
        patch.at(patch.joints.loader_started, lasting.release, depth=6)  # before those who look at the iterator
        patch.at(patch.joints.loader_started, lasting.start)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        call = next(call for call in site.source.calls(LOADER) if call.node is site.node)
        found = _number(call)
        assert found is not None
        number, source = found[1], site.source
        holder = source.parent(number)
        is_option = any(isinstance(node, ast.Attribute) and node.attr != "cpu_count" for node in ast.walk(number))
        value = f"{source.segment(number)} > 0" if is_option else "True"
        if isinstance(holder, ast.Dict):  # where the number stands, since it may be there on one machine only
            quote = source.segment(holder.keys[holder.values.index(number)] or number)[0]
            end = source.lines.span(number)[1]
            return [Edit(end, end, f", {quote}persistent_workers{quote}: {value}")]
        outer = source.parent(holder) if isinstance(holder, ast.keyword) else None
        if isinstance(outer, ast.Call) and outer is not call.node:  # dict(num_workers=...)
            return insert_argument(outer, f"persistent_workers={value}", source=source)
        return insert_argument(call, f"persistent_workers={value}")


def _is_chosen(call: Call) -> bool:
    """Whether the loader may be given the switch: itself, or with settings that cannot all be read."""
    given = call.setting("persistent_workers")
    if given is UNSURE and any(one.arg is None for one in call.node.keywords):
        return bool(given_anywhere(call.source, call.node, "persistent_workers"))
    return given is not ABSENT


def _number(call: Call) -> tuple[Source, ast.expr] | None:
    """The number of workers, where it is surely above zero, or is wherever it is given at all."""
    given = call.setting("num_workers", NUM_WORKERS)
    places = [(call.source, given)] if isinstance(given, ast.expr) else []
    if given is UNSURE and any(one.arg is None for one in call.node.keywords):
        everywhere = given_anywhere(call.source, call.node, "num_workers")
        places = everywhere if len(everywhere) == 1 else []
    return places[0] if places and _is_positive(*places[0]) else None


def _is_positive(source: Source, number: ast.expr) -> bool:
    known = source.known(number)
    if known is not None:
        return type(known.value) is int and known.value > 0
    value = source.value_of(number)
    return isinstance(value, ast.Call) and source.name_of(value.func) in _COUNTS


def _is_iterated_again(call: Call, passes: list[tuple[Draw, list[Call]]]) -> bool:
    """Whether some loop runs through the loader again and again without building it anew."""
    built_in = _loops(call.source, call.node)
    for draw, loaders in passes:
        if any(maker.node is call.node for maker in loaders):
            head = draw.node if not isinstance(draw.node, ast.For | ast.AsyncFor) else draw.node.iter
            is_drawn_once = isinstance(draw.node, ast.Call)  # next(iterator) goes on with the same pass
            if not is_drawn_once and _loops(call.source, head) - built_in:
                return True
    return _is_handed_over(call, built_in)


def _is_handed_over(call: Call, built_in: set[ast.AST]) -> bool:
    """Whether a function from another file is given the loader in a loop, as in `evaluate(model, val_loader)`."""
    source, holder = call.source, call.source.parent(call.node)
    target = holder.targets[0] if isinstance(holder, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return False
    for use in source.uses(target):
        taker = source.parent(use)
        if isinstance(taker, ast.keyword):
            taker = source.parent(taker)
        name = source.name_of(taker.func) if isinstance(taker, ast.Call) and taker.func is not use else None
        is_foreign = name is not None and "." in name and not name.startswith(("torch.", "tqdm."))
        if is_foreign and _loops(source, use) - built_in:
            return True
    return False


def _loops(source: Source, node: ast.AST) -> set[ast.AST]:
    return {loop for _, loop in loops_around(source, node)}
