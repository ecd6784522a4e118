"""Which parts of a network repeat themselves."""

from __future__ import annotations

from torch import nn

from hotlap.parts.repeated_blocks import repeated_blocks


class Inner(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)


class Block(nn.Module):
    def __init__(self, width: int = 4, extra: bool = False) -> None:
        super().__init__()
        self.inner, self.out = Inner(width), nn.Linear(2 * width, width)
        self.short = nn.Linear(width, width) if extra else None


def sizes(*parts: nn.Module) -> list[tuple[str, int]]:
    return [(type(group[0]).__name__, len(group)) for group in repeated_blocks(nn.Sequential(*parts))]


def test_the_outer_ones_and_all_of_their_class() -> None:
    assert sizes(*(Block() for _ in range(4)), nn.Linear(4, 2)) == [("Block", 4)]
    mixed = sizes(Block(extra=True), Block(), Block(), Block(), Block(8, extra=True))
    assert mixed == [("Block", 1), ("Block", 3), ("Block", 1)]


def test_lists_of_them_are_not_called() -> None:
    stages = nn.ModuleList(nn.ModuleList([Block()]) for _ in range(3))
    assert sizes(stages) == [("Block", 3)]


def test_few_different_or_simple_ones_are_none() -> None:
    assert sizes(Block(), Block()) == []
    assert sizes(Block(2), Block(4), Block(8)) == []
    assert sizes(*(nn.Linear(4, 4) for _ in range(5))) == []


def test_one_inside_another_is_not_counted() -> None:
    nested = [nn.Sequential(Block(), nn.Sequential(Block(), Block())) for _ in range(3)]
    (group,) = repeated_blocks(nn.Sequential(*nested))
    assert group == nested
