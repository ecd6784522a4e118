"""One rearrange for a chain of views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.axes import Rearrangement, rearrangements
from hotlap.source.bodies import remove_statement
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.technique import Family, Needs, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source


class EinopsRearrange(Technique):
    """A chain of view, permute and view is written as one pattern that names its axes and checks their sizes.

    ## Why it is faster
    It is not: `rearrange` makes the same views and the same one copy as the chain it replaces. What it saves is the
    mistake: a pattern says which axis is which, and refuses a size that does not fit, where `view` takes any shape with
    the right number of elements and silently mixes the axes.

    ## When it does not help
    In a step bound by the host the parsing of the pattern (cached, but looked up in each call) costs some microseconds.
    Only the whole form is reported: split, reorder, join, on a tensor whose shape the function has unpacked by name. A
    view with one transpose, as before attention, is idiomatic and left alone. It needs the package einops, so the fix
    is marked unsafe.

    ## What changes numerically
    Nothing: the same elements in the same order. The size of one part of every split axis has to be stated, since
    `(b i)` of size 6 may be 2 by 3 or 3 by 2.

    ## Claims
    A list calls einops "clearer and faster". Clearer is right. Faster is not, by itself: both ways run the same
    kernel.
    """

    family = Family.COMPUTE
    needs = Needs(package="einops")
    aliases = ("einops", "rearrange")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for found in rearrangements(source):
            yield source.site(found.node, f"clearer, not faster: {_written(source, found)}", "unsafe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        found = next(one for one in rearrangements(source) if one.node is site.node)
        yield from replace_node(source, found.node, _written(source, found))
        if found.first is not None:
            yield from remove_statement(source, found.first)
        yield from add_import(source, "from einops import rearrange")


def _written(source: Source, found: Rearrangement) -> str:
    sizes = "".join(f", {name}={size}" for name, size in found.sizes)
    return f'rearrange({source.segment(found.tensor)}, "{found.pattern}"{sizes})'
