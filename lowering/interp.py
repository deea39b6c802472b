"""NumPy reference of the tile IR: runs a dispatch without a device.

Lanes run in lockstep: a value is an array that broadcasts to [workgroups of a batch, lanes of a workgroup]. So a
missing barrier does not show by itself; `check_races` looks for it. Shared memory starts as garbage, as on a device,
and every index is tested against its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .dtypes import COMPUTE_TYPES, DTYPES
from .fused import fma
from .tile import VOID, Block, Kernel, Region, Value

Array = np.ndarray
BATCH_LANES = 1 << 15  # lanes run at once: bounds the memory of a run

_COMPUTE: dict[str, np.dtype] = {name: DTYPES[name].numpy for name in COMPUTE_TYPES}
_GARBAGE: dict[str, Any] = {name: {"b": True, "f": np.nan}.get(DTYPES[name].kind, 0x5A5A5A5A) for name in COMPUTE_TYPES}


class RaceError(RuntimeError):
    """Two lanes touch the same shared element without a barrier between, and one of them writes."""


def run_dispatch(
    kernel: Kernel,
    groups: tuple[int, int, int],
    rows: Sequence[Sequence[Array | int]],
    segments: Array | None = None,
    subgroup_size: int = 8,
    check_races: bool = False,
) -> None:
    """Run all workgroups of a dispatch; buffers are written in place.

    Args:
        groups: workgroups in x, y and z.
        rows: argument rows; each a 1-D array of the element type (or an int for a literal) for each parameter.
        segments: of a packed kernel, the row of each workgroup, indexed by group_x; else every workgroup uses row 0.
        subgroup_size: lanes of a subgroup; divides the kernel's local size.
        check_races: report conflicting shared accesses with no barrier between them.

    Raises:
        IndexError: an active lane addresses an element outside its buffer or shared array.
        RaceError: see `check_races`.
        ValueError: the arguments do not fit the kernel, or a barrier stands under divergent control.
    """
    if kernel.local_size % subgroup_size:
        raise ValueError(
            f"kernel {kernel.name!r}: {kernel.local_size} lanes are not a multiple of the subgroup size {subgroup_size}"
        )
    if kernel.packed and segments is None:
        raise ValueError(f"kernel {kernel.name!r} is packed: pass `segments`, the row of each workgroup")
    for number, row in enumerate(rows):
        _check_row(kernel, number, row)
    total = groups[0] * groups[1] * groups[2]
    chosen = np.zeros(total, np.int64)
    if segments is not None:
        chosen = np.asarray(segments)[np.arange(total) % groups[0]].astype(np.int64)
    per_batch = max(1, BATCH_LANES // kernel.local_size)
    with np.errstate(all="ignore"):
        for number, row in enumerate(rows):
            members = np.flatnonzero(chosen == number)
            for start in range(0, len(members), per_batch):
                batch = members[start : start + per_batch]
                machine = _Machine(kernel, row, batch, groups, subgroup_size, check_races)
                machine.run(kernel.body, None)


def _check_row(kernel: Kernel, number: int, row: Sequence[Array | int]) -> None:
    if len(row) != len(kernel.params):
        raise ValueError(f"kernel {kernel.name!r} has {len(kernel.params)} parameters, row {number} has {len(row)} arguments")
    for param, argument in zip(kernel.params, row, strict=True):
        if param.mode == "scalar":
            continue
        expected = DTYPES[param.dtype].numpy
        if not isinstance(argument, np.ndarray) or argument.ndim != 1 or argument.dtype != expected:
            raise ValueError(
                f"kernel {kernel.name!r}: {param.name!r} takes a 1-D {expected} array, row {number} has {argument!r}"
            )


class _Machine:
    """State of one batch of workgroups."""

    def __init__(
        self,
        kernel: Kernel,
        row: Sequence[Array | int],
        batch: Array,
        groups: tuple[int, int, int],
        subgroup: int,
        check_races: bool,
    ) -> None:
        self.kernel, self.row, self.subgroup = kernel, row, subgroup
        self.shape = (len(batch), kernel.local_size)
        lanes = np.arange(kernel.local_size, dtype=np.int32)[None, :]
        ids = batch[:, None]
        self.builtins = {
            "group_x": (ids % groups[0]).astype(np.int32),
            "group_y": (ids // groups[0] % groups[1]).astype(np.int32),
            "group_z": (ids // (groups[0] * groups[1])).astype(np.int32),
            "lane": lanes % np.int32(subgroup),
            "subgroup": lanes // np.int32(subgroup),
        }
        self.shared = [np.full((len(batch), s.size), _GARBAGE[s.dtype], _COMPUTE[s.dtype]) for s in kernel.shared]
        self.races = (
            [_Races(s.size, len(batch), f"{kernel.name!r} shared {s.name!r}") for s in kernel.shared] if check_races else []
        )
        self.lanes = lanes.astype(np.int64)
        self.env: dict[Value, Any] = {}

    def run(self, block: Block, mask: Array | None) -> None:
        """Execute `block` for the lanes of `mask` (None: all)."""
        env = self.env
        for value in block.values:
            function = _PURE.get(value.op)
            if function is not None:
                env[value] = function(value, *[env[a] for a in value.args])
            elif value.dtype == VOID:
                _STATEMENTS[value.op](self, value, mask)
            else:
                env[value] = _READS[value.op](self, value, mask)

    # -- memory ----------------------------------------------------------------------------------------------------
    def _checked(self, value: Value, index: Array, size: int, mask: Array | None, what: str) -> Array:
        """Index as int64 with the masked lanes clamped; IndexError where an active lane is outside."""
        index = index.astype(np.int64)
        outside = (index < 0) | (index >= size)
        if outside.any():
            active = outside if mask is None else outside & mask
            if active.any():
                full = np.broadcast_to(active, self.shape)
                group, lane = np.argwhere(full)[0]
                bad = np.broadcast_to(index, self.shape)[group, lane]
                where = f" at {value.source}" if value.source else ""
                raise IndexError(
                    f"kernel {self.kernel.name!r}: {value.op} of {what} at index {bad}, size {size} "
                    f"(workgroup {group} of the batch, lane {lane}, {int(full.sum())} lanes outside){where}"
                )
            index = np.where(outside, 0, index)
        return index

    def _buffer(self, number: int) -> tuple[Array, int, str]:
        param, array = self.kernel.params[number], self.row[number]
        assert isinstance(array, np.ndarray)
        return array, min(param.size, array.size), f"parameter {param.name!r}"

    def load(self, value: Value, mask: Array | None) -> Array:
        array, size, what = self._buffer(value.attr[1])
        index = self.env[value.args[0]]
        if size == 0:
            self._checked(value, index, 0, mask, what)
            return np.zeros(index.shape, _COMPUTE[value.dtype])
        return array[self._checked(value, index, size, mask, what)].astype(_COMPUTE[value.dtype])

    def store(self, value: Value, mask: Array | None) -> None:
        array, size, what = self._buffer(value.attr)
        index, stored = (self.env[a] for a in value.args)
        index = self._checked(value, index, size, mask, what)
        stored = stored.astype(array.dtype)
        if mask is None:
            index, stored = np.broadcast_arrays(index, stored)
            array[index] = stored
        else:
            index, stored, mask = np.broadcast_arrays(index, stored, mask)
            array[index[mask]] = stored[mask]

    def _cells(self, value: Value, array: Array, mask: Array | None, what: str) -> tuple[Array, Array]:
        index = self._checked(value, self.env[value.args[0]], array.shape[1], mask, what)
        return np.arange(array.shape[0])[:, None], index

    def shared_load(self, value: Value, mask: Array | None) -> Array:
        array, info = self.shared[value.attr[1]], self.kernel.shared[value.attr[1]]
        cells = self._cells(value, array, mask, f"shared {info.name!r}")
        if self.races:
            self.races[value.attr[1]].read(*self._active(cells, mask))
        return array[cells]

    def shared_store(self, value: Value, mask: Array | None) -> None:
        array, info = self.shared[value.attr], self.kernel.shared[value.attr]
        cells = self._cells(value, array, mask, f"shared {info.name!r}")
        group, index, stored, active = np.broadcast_arrays(
            *cells, self.env[value.args[1]], np.ones(self.shape, bool) if mask is None else mask
        )
        if self.races:
            self.races[value.attr].write(*self._active(cells, mask))
        array[group[active], index[active]] = stored[active]

    def _active(self, cells: tuple[Array, Array], mask: Array | None) -> tuple[Array, Array, Array]:
        """Workgroup, element and lane of each active access."""
        group, index, lane = np.broadcast_arrays(*cells, self.lanes)
        if mask is None:
            return group.ravel(), index.ravel(), lane.ravel()
        active = np.broadcast_to(mask, self.shape)
        return group[active], index[active], lane[active]

    def barrier(self, value: Value, mask: Array | None) -> None:
        if mask is not None:
            full = np.broadcast_to(mask, self.shape)
            if (full != full[:, :1]).any():
                raise ValueError(f"kernel {self.kernel.name!r}: a barrier under divergent control")
        for races in self.races:
            races.reset()

    # -- control flow ------------------------------------------------------------------------------------------------
    def loop(self, value: Value, mask: Array | None) -> None:
        assert isinstance(value, Region)
        env, body = self.env, value.blocks[0]
        carry = [env[a] for a in value.args]
        for index in range(*value.attr):
            env[body.args[0]] = np.array([[index]], np.int32)
            for argument, state in zip(body.args[1:], carry, strict=True):
                env[argument] = state
            self.run(body, mask)
            carry = [env[y] for y in body.yields]
        for result, state in zip(value.results, carry, strict=True):
            env[result] = state

    def branch(self, value: Value, mask: Array | None) -> None:
        assert isinstance(value, Region)
        env = self.env
        condition = env[value.args[0]]
        masks = [condition, ~condition] if mask is None else [condition & mask, ~condition & mask]
        taken = [side for side in (0, 1) if masks[side].any()] or [1]
        for side in taken:
            whole = len(taken) == 1 and (mask is None or mask is masks[side])
            if value.blocks[side].values:
                self.run(value.blocks[side], None if whole else masks[side])
        if not value.results:
            return
        yields = [[env[y] for y in value.blocks[side].yields] for side in taken]
        for number, result in enumerate(value.results):
            env[result] = yields[0][number] if len(taken) == 1 else np.where(condition, yields[0][number], yields[1][number])

    # -- subgroups -----------------------------------------------------------------------------------------------------
    def _by_subgroup(self, array: Array) -> Array:
        return np.broadcast_to(array, self.shape).reshape(self.shape[0], -1, self.subgroup)

    def broadcast(self, value: Value, mask: Array | None) -> Array:
        source = self._by_subgroup(self.env[value.args[0]])[:, :, value.attr]
        return np.repeat(source, self.subgroup, axis=1)

    def shuffle(self, value: Value, mask: Array | None) -> Array:
        source, lane = (self._by_subgroup(self.env[a]) for a in value.args)
        lane = self._checked(value, lane.reshape(self.shape), self.subgroup, mask, "lanes").reshape(lane.shape)
        return np.take_along_axis(source, lane, axis=2).reshape(self.shape)

    def reduce(self, value: Value, mask: Array | None) -> Array:
        function, neutral = _REDUCE[value.op]
        source = self.env[value.args[0]]
        if mask is not None:
            source = np.where(mask, source, np.array(neutral(source.dtype), source.dtype))
        result = function(self._by_subgroup(source), axis=2).astype(source.dtype)
        return np.repeat(result, self.subgroup, axis=1)


class _Races:
    """Who touched each element of a shared array since the last barrier: a lane, NOBODY or SEVERAL."""

    NOBODY, SEVERAL = -1, -2

    def __init__(self, size: int, groups: int, what: str) -> None:
        self.what = what
        self.writer = np.full((groups, size), self.NOBODY, np.int32)
        self.reader = self.writer.copy()

    def reset(self) -> None:
        self.writer.fill(self.NOBODY)
        self.reader.fill(self.NOBODY)

    def read(self, group: Array, index: Array, lane: Array) -> None:
        writer = self.writer[group, index]
        self._report((writer != self.NOBODY) & (writer != lane), group, index, lane, "reads what another lane wrote")
        self._note(self.reader, group, index, lane)

    def write(self, group: Array, index: Array, lane: Array) -> None:
        writer, reader = self.writer[group, index], self.reader[group, index]
        self._report((reader != self.NOBODY) & (reader != lane), group, index, lane, "overwrites what another lane reads")
        self._report((writer != self.NOBODY) & (writer != lane), group, index, lane, "overwrites what another lane wrote")
        self._note(self.writer, group, index, lane)
        clash = self.writer[group, index] == self.SEVERAL
        self._report(clash, group, index, lane, "and another lane write the same element")

    def _note(self, table: Array, group: Array, index: Array, lane: Array) -> None:
        before = table[group, index]
        table[group, index] = lane
        other = (table[group, index] != lane) | ((before != self.NOBODY) & (before != lane))
        table[group[other], index[other]] = self.SEVERAL

    def _report(self, conflict: Array, group: Array, index: Array, lane: Array, how: str) -> None:
        if conflict.any():
            first = int(np.flatnonzero(conflict)[0])
            raise RaceError(
                f"kernel {self.what}: lane {lane[first]} {how} (element {index[first]}, workgroup {group[first]} of the batch) "
                "with no barrier between; add a barrier"
            )


# -- pure operations -------------------------------------------------------------------------------------------------


def _int_or(integer: Callable[..., Array], real: Callable[..., Array]) -> Callable[..., Array]:
    return lambda value, a, *rest: (real if a.dtype.kind == "f" else integer)(a, *rest)


def _truncated(a: Array, b: Array) -> tuple[Array, Array]:
    """Quotient and remainder as C has them, 0 where b is 0 (undefined there)."""
    divisor = np.where(b == 0, b.dtype.type(1), b)
    rest = np.fmod(a, divisor)
    return np.where(b == 0, 0, (a - rest) // divisor).astype(a.dtype), np.where(b == 0, 0, rest).astype(a.dtype)


def _shift(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda value, a, b: function(a, b.astype(a.dtype) & a.dtype.type(8 * a.itemsize - 1))


def _clz(value: Value, a: Array) -> Array:
    bits = np.ascontiguousarray(a).view(f"u{a.itemsize}")
    count = np.zeros(bits.shape, a.dtype)
    for shift in range(0, 8 * a.itemsize, 32):  # parts that f64 holds exactly, so the exponent is the number of bits
        length = np.frexp((bits >> bits.dtype.type(shift) & bits.dtype.type(0xFFFFFFFF)).astype(np.float64))[1]
        count = np.where(length > 0, length + shift, count)
    return (8 * a.itemsize - count).astype(a.dtype)


def _select(value: Value, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _convert(value: Value, a: Array) -> Array:
    target = _COMPUTE[value.dtype]
    if target == np.bool_:
        return a != 0
    if a.dtype.kind == "f" and target.kind != "f":
        if target == np.uint64:
            return np.where((a >= 0) & (a < 2.0**64), a, 0).astype(target)
        return np.where((a >= -(2.0**63)) & (a < 2.0**63), a, 0).astype(np.int64).astype(target)
    return a.astype(target)


_NARROW: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}

_PURE: dict[str, Callable[..., Array]] = {
    "const": lambda v: np.array([[v.attr[1]]], _COMPUTE[v.dtype]),
    "add": lambda v, a, b: a + b,
    "sub": lambda v, a, b: a - b,
    "mul": lambda v, a, b: a * b,
    "div": _int_or(lambda a, b: _truncated(a, b)[0], np.divide),
    "rem": _int_or(lambda a, b: _truncated(a, b)[1], np.fmod),
    "fma": lambda v, a, b, c: fma(a, b, c),
    "neg": lambda v, a: np.zeros_like(a) - a if a.dtype.kind != "f" else np.negative(a),
    "abs": lambda v, a: np.abs(a),
    "min": lambda v, a, b: np.minimum(a, b),
    "max": lambda v, a, b: np.maximum(a, b),
    "floor": lambda v, a: np.floor(a),
    "ceil": lambda v, a: np.ceil(a),
    "trunc": lambda v, a: np.trunc(a),
    "round_even": lambda v, a: np.rint(a),
    "sqrt": lambda v, a: np.sqrt(a),
    "lt": lambda v, a, b: a < b,
    "le": lambda v, a, b: a <= b,
    "eq": lambda v, a, b: a == b,
    "ne": lambda v, a, b: a != b,
    "and": lambda v, a, b: a & b,
    "or": lambda v, a, b: a | b,
    "xor": lambda v, a, b: a ^ b,
    "not": lambda v, a: ~a,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "popcount": lambda v, a: np.bitwise_count(np.ascontiguousarray(a).view(f"u{a.itemsize}")).astype(a.dtype),
    "clz": _clz,
    "select": _select,
    "convert": _convert,
    "bitcast": lambda v, a: np.ascontiguousarray(a).view(_COMPUTE[v.dtype]),
    "round_to": lambda v, a: a.astype(_NARROW[v.attr]).astype(np.float32),
}


def _literal(machine: _Machine, value: Value, mask: Array | None) -> Array:
    bits = np.array([[int(machine.row[value.attr[1]]) & 0xFFFFFFFF]], np.uint32)  # type: ignore[arg-type]
    return bits.view(_COMPUTE[value.dtype])


_READS: dict[str, Callable[[_Machine, Value, Array | None], Array]] = {
    "builtin": lambda machine, value, mask: machine.builtins[value.attr],
    "scalar": _literal,
    "load": _Machine.load,
    "shared_load": _Machine.shared_load,
    "broadcast": _Machine.broadcast,
    "shuffle": _Machine.shuffle,
    "subgroup_add": _Machine.reduce,
    "subgroup_min": _Machine.reduce,
    "subgroup_max": _Machine.reduce,
}
_STATEMENTS: dict[str, Callable[[_Machine, Value, Array | None], None]] = {
    "store": _Machine.store,
    "shared_store": _Machine.shared_store,
    "barrier": _Machine.barrier,
    "for": _Machine.loop,
    "if": _Machine.branch,
}


def _largest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _smallest(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


_REDUCE: dict[str, tuple[Callable[..., Array], Callable[[np.dtype], Any]]] = {
    "subgroup_add": (np.sum, lambda dtype: 0),
    "subgroup_min": (np.min, _largest),
    "subgroup_max": (np.max, _smallest),
}
