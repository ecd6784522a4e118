"""Decoded samples kept in memory."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.source.edits import add_import, replace_node
from hotlap.technique import CannotHelp, Family, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.calls import Call
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

PARTS = {"PIL.Image.open": ("image_cache", "cached_open", 1), "cv2.imread": ("array_cache", "cached_imread", 2)}
OTHER_READS = ("imageio.imread", "skimage.io.imread", "numpy.load", "pandas.read_csv", "torch.load")


class SampleCache(Technique):
    """Images are read and decoded once, then taken from memory in every later epoch.

    ## Why it is faster
    A data set that opens its file in `__getitem__` reads and decodes the same bytes again in every epoch. Decoding one
    photo takes about two milliseconds of one core; copying it from memory takes a fraction of that. The cache stands
    behind `Image.open` and `cv2.imread`, holds what was decoded, before any transform, in one copy for all workers, and
    never takes more than its limit. Where the pixels of the data set would not fit and its files would, it holds the
    files (`hold` is "decoded", "encoded" or "auto").

    ## When it does not help
    In the first epoch, and in scripts that train for one epoch only. When the decoded data set is much larger than the
    memory granted, most lookups miss. When the loop does not wait for data, there is nothing to gain. Files held
    encoded save the reading only, which the page cache of the system already does on local disks. For that reason
    plain `open(...).read()` is left alone; what is made from it (`numpy.load`, `torch.load`, tables) is reported in
    source, and `hotlap.parts.cached_dataset.CachedDataset` keeps whole samples, if they are always the same. Workers
    that are spawned, not forked, are not reached from outside. The fix is marked unsafe: it spends memory, and it makes
    the script import hotlap.

    ## What changes numerically
    Nothing: the same pixels reach the same transforms. Only what was read is kept, never the outcome of something
    random, so augmentation goes on drawing as before. A file that changes on disk is decoded again.

    ## Claims
    "Load the data set into memory" is in the tip lists, without a figure. It is not free advice: decoded pixels take
    several times the room of the JPEG files (500 x 375 pixels are 750 KB as they are kept), so the cache is bounded in
    bytes. Full, it keeps what it has, and only what is no longer read makes room: with every key asked for once an
    epoch, throwing out the oldest would leave nothing to find.
    """

    family = Family.WAIT
    aliases = ("in-memory dataset", "cache", "Image.open", "cv2.imread")
    traits = frozenset({"cached samples"})
    fills_in_an_epoch = True
    more_settings = {"bytes": 2**30, "hold": "auto"}  # noqa: RUF012  # constants of the contract, never changed
    values: ClassVar[Values] = {"bytes": Numbers(1), "hold": ("decoded", "encoded", "auto")}

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        if not source.mentions("__getitem__"):
            return
        for call in source.calls(*PARTS, *OTHER_READS):
            if not _is_in_dataset(call):
                continue
            if call.name in PARTS:
                message = "the image is decoded again in every epoch; a cache keeps it in memory"
                yield source.site(call.node, message, "unsafe" if _can_be_cached(call) else None)
            elif call.node.args:
                yield source.site(call.node, "the file is read again in every epoch; keep it in memory if it fits")

    def seen(self, run: Run) -> bool | None:
        if run.image_cache_hits:
            return True
        return False if run.images_opened else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.images_opened:
            return CannotHelp("no image file was opened through PIL or OpenCV")
        if any(loader.trains and loader.num_workers and loader.start_method != "fork" for loader in run.loaders):
            return CannotHelp("the loader's workers are spawned, and what is attached here does not reach them")
        return [Try({}, run.share("wait"))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.memory import free_memory
        from hotlap.parts import file_pool

        def opened(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            from hotlap.parts.image_cache import cached_open

            if len(args) != 1 or kwargs:
                return proceed(*args, **kwargs)
            return cached_open(args[0], original=proceed)

        def read(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            from hotlap.parts.array_cache import cached_imread

            if not 1 <= len(args) <= 2 or kwargs:
                return proceed(*args, **kwargs)
            return cached_imread(*args, original=proceed)

        def built(proceed: Any, loader: Any, bound: Any) -> Any:
            with contextlib.suppress(Exception):  # no length, whatever it raises
                file_pool.expect(len(bound.arguments["dataset"]))
            return proceed(loader, bound)

        limit = int(setting.get("bytes", 0)) or file_pool.default_limit(free_memory())  # also within a container
        file_pool.set_limit(limit, str(setting.get("hold", "auto")))  # before a worker is forked, so that all share it
        patch.on_undo(file_pool.clear)
        patch.at(patch.joints.loader_built, built)
        patch.at(patch.joints.image_opened, opened, depth=1)
        patch.at(patch.joints.image_read, read, depth=1)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        assert isinstance(site.node, ast.Call)
        module, function, _ = PARTS[site.source.name_of(site.node.func) or ""]
        part = f"from hotlap.parts.{module} import {function}"
        imports = add_import(site.source, part)
        if setting:
            held = f", {setting['hold']!r}" if "hold" in setting else ""
            limit = f"{site.source.lines.newline}set_limit({setting.get('bytes')}{held})"
            imports = [replace(one, text=one.text + limit) for one in add_import(site.source, f"{part}, set_limit")]
        return [*replace_node(site.source, site.node.func, function), *imports]


def _is_in_dataset(call: Call) -> bool:
    """Whether a call stands in `__getitem__` of a map-style data set, or in a function that one calls."""
    source = call.source
    function = source.enclosing(call.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if function is None or _is_getter(source, function):
        return function is not None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    callers = [(where, where.enclosing(one, ast.FunctionDef)) for where, one in source.callers(function)]
    return any(caller is not None and _is_getter(where, caller) for where, caller in callers)


def _is_getter(source: Source, function: ast.AST) -> bool:
    """`__getitem__` of a class that is, or looks like, a map-style data set."""
    owner = source.parent(function)
    is_named = isinstance(function, ast.FunctionDef) and function.name == "__getitem__"
    if not is_named or not isinstance(owner, ast.ClassDef):
        return False
    has_length = any(isinstance(one, ast.FunctionDef) and one.name == "__len__" for one in owner.body)
    bases = [source.name_of(base) or "" for base in owner.bases]
    return has_length or any(base.endswith("Dataset") for base in bases)


def _can_be_cached(call: Call) -> bool:
    """Arguments as the part takes them; and the name it would go by is still free."""
    module, function, most = PARTS[call.name]
    bound = [binding for scope in call.source.names.scopes for binding in scope.bindings.get(function, [])]
    is_free = all(binding.qualified == f"hotlap.parts.{module}.{function}" for binding in bound)
    args = call.node.args
    is_plain = not call.node.keywords and not any(isinstance(one, ast.Starred) for one in args)
    return is_free and is_plain and 1 <= len(args) <= most
