"""What lowering hands to the runtime: kernels, buffers, and the steps that run them. Plain data, no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from .tile import Kernel

GUARD_BYTES = 256  # alignment of buffers inside the arena


@dataclass(frozen=True)
class Ref:
    """A place in a buffer: `Program.buffers[buffer]`, from byte `offset`, `nbytes` long."""

    buffer: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Buffer:
    """A buffer of a program.

    Attributes:
        kind: "input" (flat argument `index`), "output" (flat result `index`), "const" (`data` uploaded once) or
            "temp" (`offset` bytes into the arena).
        alias: for an output, the donated flat argument whose memory it takes over, else None.
    """

    kind: str
    nbytes: int
    index: int = -1
    data: bytes | None = None
    offset: int = -1
    alias: int | None = None


@dataclass(frozen=True)
class Dispatch:
    """One vkCmdDispatch.

    The kernel's arguments are one row of 8-byte entries, in the order of its parameters: the address of a Ref, or a
    32-bit literal (an int) in the low half. A packed kernel has `rows` of them, and `segments` names a u32 buffer
    with the row of each workgroup (indexed by group_x).

    Attributes:
        groups: workgroups in x, y, z, each within the device's limit.
        reads, writes: places touched, for barriers and for the hazard checker.
        inplace: (read, written) places that may be the same memory: each lane reads an element before it alone writes it.
    """

    kernel: int
    groups: tuple[int, int, int]
    rows: tuple[tuple[Ref | int, ...], ...]
    segments: Ref | None = None
    reads: tuple[Ref, ...] = ()
    writes: tuple[Ref, ...] = ()
    inplace: tuple[tuple[Ref, Ref], ...] = ()


@dataclass(frozen=True)
class Barrier:
    """All earlier dispatches finish, and their writes are visible, before any later one starts."""


@dataclass(frozen=True)
class HostLoop:
    """Run `body` again and again while the element at `flag` (a bool) is true; the host reads the flag between rounds.

    `body` ends by computing the flag. `Program.steps` is the only nesting: a body may hold host loops too.
    """

    flag: Ref
    body: tuple[Step, ...]
    source: str = ""


Step = Dispatch | Barrier | HostLoop


@dataclass(frozen=True)
class Output:
    """Where a flat result lives: `buffer` is an "output" buffer, or an "input" one that is handed through."""

    buffer: int
    shape: tuple[int, ...]
    dtype: str


class Texts(Mapping[str, str]):
    """Text of each stage (graph, groups, tile, explain), written when asked for."""

    def __init__(self, writers: dict[str, Callable[[], str]]) -> None:
        self._writers = writers

    def __getitem__(self, stage: str) -> str:
        return self._writers[stage]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._writers)

    def __len__(self) -> int:
        return len(self._writers)


@dataclass
class Program:
    """A compiled function.

    Attributes:
        kernels: distinct kernels; `spirv[i]` is the code of `kernels[i]`.
        arena_bytes: size of the memory that the "temp" buffers share.
        unplanned_bytes: what the temporaries would take without sharing.
        inputs: (shape, dtype) of the flat arguments.
        decisions: the fusion decisions in words.
        flops: arithmetic operations of one call, counting a fused multiply-add as two.
        checked: the kernels test their indices, and each argument row ends with the address of an error record.
    """

    name: str
    kernels: list[Kernel]
    spirv: list[bytes]
    buffers: list[Buffer]
    steps: list[Step]
    inputs: list[tuple[tuple[int, ...], str]]
    outputs: list[Output]
    arena_bytes: int = 0
    unplanned_bytes: int = 0
    donated: frozenset[int] = frozenset()
    decisions: list[str] = field(default_factory=list)
    flops: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)
    checked: bool = False
