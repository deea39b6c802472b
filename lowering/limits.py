"""How much code a kernel may hold.

Long kernels save dispatches, loads and loop turns; but they take registers, and compile time that on some drivers grows
faster than their length.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.caps import DeviceCaps


@dataclass(frozen=True)
class Limits:
    """Bounds on the code of one kernel.

    Attributes:
        weight: instructions and loads that fusion puts into it.
        depth: longest chain of inlined nodes.
        arrays: arrays that it reads and writes.
        folds: long reductions that one lane does all by itself.
        fold: longest reduction, or part of one, that a lane writes out instead of looping.
        stride: elements a turn of a looped cumulative operation.
        kept: columns a lane of a row that are written out, and so stay in registers.
        step: positions of the contracted dimension a turn of a tiled matrix product.
        products: multiply-adds a turn of a tiled matrix product.
    """

    weight: int
    depth: int
    arrays: int
    folds: int
    fold: int
    stride: int
    kept: int
    step: int
    products: int


FULL = Limits(weight=1500, depth=120, arrays=64, folds=4, fold=8, stride=4, kept=8, step=8, products=256)
COMPACT = Limits(weight=100, depth=20, arrays=16, folds=1, fold=1, stride=1, kept=1, step=1, products=4)


def limits(caps: DeviceCaps) -> Limits:
    """Bounds for kernels of a device."""
    return COMPACT if caps.compact else FULL
