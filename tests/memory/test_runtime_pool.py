"""The memory pool by itself: a model of a device that finishes work when told."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from k3jit.runtime.errors import OutOfDeviceMemory
from k3jit.runtime.memory import ALIGNMENT, Block, Pool

SLAB = 16 * ALIGNMENT
HEAP = 80 * ALIGNMENT


class FakeSlab:
    def __init__(self, machine: FakeDevice, size: int) -> None:
        self._machine, self.size, self.address = machine, size, 0
        self.bytes: np.ndarray | None = np.zeros(0, np.uint8)
        machine.taken += size

    def destroy(self) -> None:
        self._machine.taken -= self.size


class FakeDevice:
    """Memory of HEAP bytes; `submitted` and `finished` number its work."""

    def __init__(self) -> None:
        self.taken = self.submitted = self.finished = 0

    def make(self, size: int) -> FakeSlab:
        if self.taken + size > HEAP:
            raise OutOfDeviceMemory("the heap is full.")
        return FakeSlab(self, size)

    def wait(self, value: int) -> None:
        self.finished = max(self.finished, value)

    def pool(self, keep_empty_bytes: int = 2 * SLAB) -> Pool:
        return Pool(self.make, lambda v: v <= self.finished, self.wait, lambda: self.submitted, "fake", SLAB, keep_empty_bytes)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = FakeDevice()
        self.pool = self.device.pool()
        self.blocks: list[Block] = []
        self.last_use: dict[int, int] = {}

    @rule(size=st.integers(0, 30 * ALIGNMENT), host=st.booleans())
    def take(self, size: int, host: bool) -> None:
        try:
            block = self.pool.take(size, "owner", host)
        except OutOfDeviceMemory:
            assert self.pool.live_bytes + size > HEAP // 8, "refused although nearly everything is free"
            return
        assert block.size >= size and block.start % ALIGNMENT == 0
        if host:
            assert block.ready <= self.device.finished, "the host was given memory that the device still uses"
        self.blocks.append(block)

    @rule()
    def submit(self) -> None:
        self.device.submitted += 1

    @precondition(lambda self: self.device.finished < self.device.submitted)
    @rule()
    def finish_one(self) -> None:
        self.device.finished += 1

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pool.drop(self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1))))

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        occupied = {id(block.slab) for block in self.blocks}
        assert self.pool.slab_bytes == self.device.taken
        assert len(self.pool._spaces) == len(occupied)

    @invariant()
    def sound(self) -> None:
        self.pool.check()
        assert self.pool.live_bytes == sum(block.size for block in self.blocks)
        assert self.device.taken == self.pool.slab_bytes


TestPool = PoolMachine.TestCase


def test_neighbours_join() -> None:
    pool = FakeDevice().pool()
    blocks = [pool.take(ALIGNMENT) for _ in range(16)]
    for block in blocks[::2] + blocks[1::2]:
        pool.drop(block)
    pool.check()
    assert pool.take(SLAB).start == 0


def test_memory_in_use_by_the_device_serves_the_device_only() -> None:
    device = FakeDevice()
    pool = device.pool()
    first = pool.take(SLAB)
    device.submitted = 1
    pool.drop(first)
    other = pool.take(SLAB, host=True)
    assert other.slab is not first.slab
    assert pool.take(SLAB).slab is first.slab


def test_best_fit_keeps_large_ranges_whole() -> None:
    pool = FakeDevice().pool()
    blocks = [pool.take(n * ALIGNMENT) for n in (8, 1, 2, 1, 4)]
    for block in blocks[::2]:
        pool.drop(block)
    assert pool.take(2 * ALIGNMENT).start == blocks[2].start
    assert pool.take(3 * ALIGNMENT).start == blocks[4].start


def test_out_of_memory_lists_owners() -> None:
    pool = FakeDevice().pool()
    kept = [pool.take(8 * ALIGNMENT, owner) for owner in ("weights", "weights", "activations", "weights")]
    with pytest.raises(OutOfDeviceMemory, match=r"Largest owners: weights 6.0 KiB, activations 2.0 KiB.*heap is full"):
        pool.take(HEAP, "cache")
    for block in kept:
        pool.drop(block)
    assert pool.take(HEAP, "cache").size == HEAP, "empty slabs were not given back"


def test_waits_for_the_device_rather_than_fail() -> None:
    device = FakeDevice()
    pool = device.pool()
    block = pool.take(HEAP)
    device.submitted = 3
    pool.drop(block)
    assert pool.take(HEAP, host=True).size == HEAP and device.finished == 3
