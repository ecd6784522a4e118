"""Blocks of memory that processes share, taken in chains and given back. Whoever calls holds a lock of his own."""

from __future__ import annotations

_IN_USE, _FREE, _FRESH = range(3)  # blocks; the first of those given back, + 1; how many were ever taken


class SharedBlocks:
    """All state lies in the memory it is given: three numbers, a link for each block, and the blocks. A chain is known
    by its first block, + 1, so that 0 is none; a link is to the next block likewise."""

    def __init__(self, numbers: memoryview, links: memoryview, data: memoryview, block_bytes: int) -> None:
        self._numbers, self._links, self._data, self.block_bytes = numbers, links, data, block_bytes

    @property
    def in_use(self) -> int:
        return int(self._numbers[_IN_USE])

    @property
    def left(self) -> int:
        return len(self._links) - self.in_use

    def needed(self, length: int) -> int:
        """At least one, so that also an empty value has a first block."""
        return max(1, -(-length // self.block_bytes))

    def clear(self) -> None:
        for number in (_IN_USE, _FREE, _FRESH):
            self._numbers[number] = 0

    def take(self, value: memoryview) -> int:
        """As many as a value needs, used ones first, filled with it."""
        first, previous, needed = 0, 0, self.needed(len(value))
        for number in range(needed):
            block = self._numbers[_FREE]
            if block:
                self._numbers[_FREE] = self._links[block - 1]
            else:
                self._numbers[_FRESH] += 1
                block = self._numbers[_FRESH]
            piece = value[number * self.block_bytes : (number + 1) * self.block_bytes]
            at = (block - 1) * self.block_bytes
            self._data[at : at + len(piece)] = piece
            if previous:
                self._links[previous - 1] = block
            first, previous = first or block, block
        self._links[previous - 1] = 0
        self._numbers[_IN_USE] += needed
        return first

    def give_back(self, first: int) -> None:
        last, count = first, 1
        while self._links[last - 1]:
            last, count = self._links[last - 1], count + 1
        self._links[last - 1], self._numbers[_FREE] = self._numbers[_FREE], first
        self._numbers[_IN_USE] -= count

    def runs(self, first: int) -> list[memoryview]:
        """The blocks of a chain, those that lie side by side in one piece."""
        runs, start, block = [], first, first
        while block:
            following = self._links[block - 1]
            if following != block + 1:
                runs.append(self._data[(start - 1) * self.block_bytes : block * self.block_bytes])
                start = following
            block = following
        return runs
