"""Memory pool: blocks cut from large slabs, best fit, neighbours joined on release. Knows nothing of Vulkan.

Work on a device runs in submission order with a barrier between submissions, so memory released by the host may be
given at once to work submitted later. Only a write *by the host* has to wait for the device. So a released block cools
down, unjoined, until the submission `ready` is finished; a request of just its size may have it before. Since programs
ask for the same sizes again and again, that is the usual way, and the fast one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from .errors import OutOfDeviceMemory

ALIGNMENT = 256
SLAB_BYTES = 64 << 20
KEEP_EMPTY_BYTES = 256 << 20  # empty slabs beyond this go back to the driver
OWNERS_SHOWN = 8


class Slab(Protocol):
    """One allocation of the driver: `size` bytes at `address`, and its bytes where the host can see them."""

    size: int
    address: int
    bytes: np.ndarray | None

    def destroy(self) -> None: ...


class Block:
    """A live piece of a slab."""

    __slots__ = ("owner", "ready", "size", "slab", "start")

    def __init__(self, slab: Slab, start: int, size: int, owner: str, ready: int) -> None:
        self.slab, self.start, self.size, self.owner, self.ready = slab, start, size, owner, ready


class _Space:
    """Free ranges of one slab, by start and by end: start -> (size, ready)."""

    __slots__ = ("ends", "free", "number", "slab")

    def __init__(self, slab: Slab, number: int) -> None:
        self.slab, self.number = slab, number
        self.free: dict[int, tuple[int, int]] = {}
        self.ends: dict[int, int] = {}


class Pool:
    """Hands out blocks.

    Args:
        make: creates a slab of at least the given size, or raises OutOfDeviceMemory.
        reached: whether a submission is finished.
        wait: blocks until a submission is finished.
        submitted: number of the last submission.
        name: what errors call this pool.
    """

    def __init__(
        self,
        make: Callable[[int], Slab],
        reached: Callable[[int], bool],
        wait: Callable[[int], None],
        submitted: Callable[[], int],
        name: str,
        slab_bytes: int = SLAB_BYTES,
        keep_empty_bytes: int = KEEP_EMPTY_BYTES,
    ) -> None:
        self._make, self._reached, self._wait, self._submitted, self._name = make, reached, wait, submitted, name
        self._slab_bytes, self._keep_empty_bytes = slab_bytes, keep_empty_bytes
        self._spaces: dict[int, _Space] = {}
        self._by_slab: dict[int, _Space] = {}
        self._sizes: list[tuple[int, int, int]] = []  # (size, slab number, start) of every free range
        self._dropped: deque[Block] = deque()
        self._cooling: dict[int, deque[Block]] = {}  # by size, each in order of `ready`
        self._live: set[Block] = set()
        self._count = 0
        self._empty_bytes = 0
        self.live_bytes = 0
        self.slab_bytes = 0
        self.peak_bytes = 0

    # -- taking ------------------------------------------------------------------------------------------------
    def take(self, nbytes: int, owner: str = "", host: bool = False) -> Block:
        """A block of at least `nbytes`; with `host`, one that the host may write at once.

        Raises OutOfDeviceMemory with the largest live owners.
        """
        if self._dropped:
            self._collect()
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        same_size = self._cooling.get(size)
        if same_size and (not host or self._reached(same_size[0].ready)):
            block: Block | None = same_size.popleft()
            assert block is not None
            block.owner = owner
        else:
            self._release_cooling()
            block = self._fit(size, owner, host)
        if block is None:
            block = self._grow(size, owner, host)
        self._live.add(block)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return block

    def _fit(self, size: int, owner: str, host: bool) -> Block | None:
        for position in range(bisect_left(self._sizes, (size, 0, 0)), len(self._sizes)):
            free_size, number, start = self._sizes[position]
            space = self._spaces[number]
            ready = space.free[start][1]
            if host and not self._reached(ready):
                continue
            del self._sizes[position]
            del space.free[start]
            del space.ends[start + free_size]
            if free_size == space.slab.size:
                self._empty_bytes -= free_size
            if free_size > size:
                self._insert(space, start + size, free_size - size, ready)
            return Block(space.slab, start, size, owner, ready)
        return None

    def _grow(self, size: int, owner: str, host: bool) -> Block:
        # A request beyond half a slab gets a slab of its own size: nothing is left over to be lost.
        wanted = size if size > self._slab_bytes // 2 else self._slab_bytes
        if not host and self._cooling:
            self._release_cooling(everything=True)
            block = self._fit(size, owner, host)
            if block is not None:
                return block
        attempts: list[Callable[[], None]] = [lambda: None, self.trim]
        for prepare in attempts:
            prepare()
            for nbytes in dict.fromkeys((wanted, size)):
                try:
                    self._add(self._make(nbytes))
                except OutOfDeviceMemory as error:
                    failure = error
                    continue
                block = self._fit(size, owner, host)
                assert block is not None
                return block
        if host:  # memory that only the device still uses
            self._wait(self._submitted())
            self.settle()
            block = self._fit(size, owner, host)
            if block is not None:
                return block
        raise OutOfDeviceMemory(
            f"{self._name}: no room for {format_bytes(size)} ({owner or 'unnamed'}). {self.report()} {failure}"
        )

    def _add(self, slab: Slab) -> None:
        space = _Space(slab, self._count)
        self._count += 1
        self._spaces[space.number] = self._by_slab[id(slab)] = space
        self.slab_bytes += slab.size
        self._empty_bytes += slab.size
        self._insert(space, 0, slab.size, 0)

    # -- giving back -------------------------------------------------------------------------------------------
    def drop(self, block: Block) -> None:
        """Give a block back. Safe in a finalizer, in any thread, without the lock: it takes effect at the next `settle`."""
        block.ready = self._submitted()
        self._dropped.append(block)

    def settle(self) -> None:
        """Take back dropped blocks, and join those that have cooled down."""
        self._collect()
        self._release_cooling()

    def _collect(self) -> None:
        while self._dropped:
            block = self._dropped.popleft()
            self._live.remove(block)
            self.live_bytes -= block.size
            self._cooling.setdefault(block.size, deque()).append(block)

    def _release_cooling(self, everything: bool = False) -> None:
        for size, blocks in list(self._cooling.items()):
            while blocks and (everything or self._reached(blocks[0].ready)):
                block = blocks.popleft()
                self._release(self._by_slab[id(block.slab)], block.start, block.size, block.ready)
            if not blocks:
                del self._cooling[size]

    def _release(self, space: _Space, start: int, size: int, ready: int) -> None:
        following = space.free.pop(start + size, None)
        if following is not None:
            del space.ends[start + size + following[0]]
            self._forget(following[0], space.number, start + size)
            size, ready = size + following[0], max(ready, following[1])
        before = space.ends.pop(start, None)
        if before is not None:
            earlier, earlier_ready = space.free.pop(before)
            self._forget(earlier, space.number, before)
            start, size, ready = before, size + earlier, max(ready, earlier_ready)
        self._insert(space, start, size, ready)
        if size == space.slab.size:
            self._empty_bytes += size
            if self._empty_bytes > self._keep_empty_bytes:
                self._trim_ready(self._keep_empty_bytes)

    def _insert(self, space: _Space, start: int, size: int, ready: int) -> None:
        space.free[start] = (size, ready)
        space.ends[start + size] = start
        insort(self._sizes, (size, space.number, start))

    def _forget(self, size: int, number: int, start: int) -> None:
        del self._sizes[bisect_left(self._sizes, (size, number, start))]

    def trim(self) -> None:
        """Settle, wait for the device, and give every empty slab back to the driver."""
        self._wait(self._submitted())
        self.settle()
        self._trim_ready(0)

    def _trim_ready(self, keep: int) -> None:
        for space in list(self._spaces.values()):
            if self._empty_bytes <= keep:
                return
            whole = space.free.get(0)
            if whole is not None and whole[0] == space.slab.size and self._reached(whole[1]):
                self._forget(whole[0], space.number, 0)
                del self._spaces[space.number], self._by_slab[id(space.slab)]
                self._empty_bytes -= space.slab.size
                self.slab_bytes -= space.slab.size
                space.slab.destroy()

    # -- reports -----------------------------------------------------------------------------------------------
    def live(self) -> list[Block]:
        """Blocks in use."""
        self.settle()
        return list(self._live)

    def report(self) -> str:
        """One sentence: what is in use, and the owners that hold most."""
        owners: Counter[str] = Counter()
        for block in self._live:
            owners[block.owner or "unnamed"] += block.size
        largest = ", ".join(f"{owner} {format_bytes(size)}" for owner, size in owners.most_common(OWNERS_SHOWN))
        return (
            f"In use: {format_bytes(self.live_bytes)} in {len(self._live)} buffers, "
            f"{format_bytes(self.slab_bytes)} taken from the driver. Largest owners: {largest or 'none'}."
        )

    def check(self) -> None:
        """Raise AssertionError unless free and live ranges tile every slab and no two free ranges touch (for tests)."""
        self.settle()
        ranges: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in self._spaces}
        for number, space in self._spaces.items():
            ranges[number] += [(start, start + size, True) for start, (size, _) in space.free.items()]
            assert {end: start for start, (size, _) in space.free.items() for end in (start + size,)} == space.ends
        cooling = {block for blocks in self._cooling.values() for block in blocks}
        for block in self._live | cooling:
            ranges[self._by_slab[id(block.slab)].number].append((block.start, block.start + block.size, False))
        for number, pieces in ranges.items():
            position, was_free = 0, False
            for start, end, is_free in sorted(pieces):
                assert start == position and start % ALIGNMENT == 0, "ranges overlap or leave a gap"
                assert not (was_free and is_free), "free neighbours were not joined"
                position, was_free = end, is_free
            assert position == self._spaces[number].slab.size
        free = sorted(
            (size, number, start) for number, space in self._spaces.items() for start, (size, _) in space.free.items()
        )
        assert free == self._sizes
        assert self._empty_bytes == sum(
            s.slab.size for s in self._spaces.values() if 0 in s.free and s.free[0][0] == s.slab.size
        )


def format_bytes(nbytes: int) -> str:
    """12.3 MiB and the like."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
