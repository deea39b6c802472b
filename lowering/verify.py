"""Verifier of the tile IR: types, dominance, parameter modes, barriers, loops and limits of the device.

It walks a kernel once and stops at the first broken rule, naming the line of `tile.to_text` where it is.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.caps import DeviceCaps
from .dtypes import COMPUTE_TYPES, DTYPES, FLOATS, missing, width
from .fold import wrap
from .tile import OPS, VOID, Block, Kernel, Region, Value, to_text

_BUILTINS = ("group_x", "group_y", "group_z", "lane", "subgroup")
_MODES = ("r", "w", "rw", "scalar")
_INT_LIMIT = 1 << 31
_INTEGERS = ("i32", "u32", "i64", "u64")
_SAME_TYPE = frozenset(("add", "sub", "mul", "div", "rem", "fma", "min", "max", "lt", "le", "eq", "ne", "and", "or", "xor"))
_SUBGROUP = frozenset(("broadcast", "shuffle", "subgroup_add", "subgroup_min", "subgroup_max"))


class VerifyError(ValueError):
    """A kernel that breaks a rule of the tile IR. The message quotes the line of its text."""


def statement_lines(kernel: Kernel) -> dict[Value, int]:
    """Line number, from 0, of each statement in `to_text(kernel)`."""
    lines: dict[Value, int] = {}
    count = 1

    def walk(block: Block) -> None:
        nonlocal count
        for value in block.values:
            lines[value] = count
            count += 1
            if isinstance(value, Region):
                for number, inner in enumerate(value.blocks):
                    count += number > 0  # the line "else"
                    walk(inner)
                    count += 1  # the yield
                count += 1  # the end

    walk(kernel.body)
    return lines


def verify(kernel: Kernel, caps: DeviceCaps) -> None:
    """Raise `VerifyError` unless the kernel obeys every rule and fits a device with these capabilities."""
    _Verifier(kernel, caps).run()


class _Verifier:
    def __init__(self, kernel: Kernel, caps: DeviceCaps) -> None:
        self.kernel, self.caps, self.missing = kernel, caps, missing(caps)
        self.defined: set[Value] = set()
        self.seen: set[Value] = set()
        self.branches = 0
        self.attributes: dict[str, Callable[[Value], str | None]] = {
            "const": self._const,
            "builtin": self._builtin,
            "convert": self._convert,
            "bitcast": self._bitcast,
            "round_to": self._round_to,
            "load": self._load,
            "store": self._store,
            "shared_load": self._shared_load,
            "shared_store": self._shared_store,
            "scalar": self._scalar,
            "barrier": self._barrier,
            "broadcast": self._broadcast,
        }

    def run(self) -> None:
        kernel, caps = self.kernel, self.caps
        size = kernel.local_size
        if size <= 0 or size % caps.subgroup_size or size > caps.max_local_size:
            allowed = f"a positive multiple of the subgroup size {caps.subgroup_size}, at most {caps.max_local_size}"
            self._refuse(None, f"local size {size} must be {allowed}")
        for param in kernel.params:
            if param.mode not in _MODES or param.dtype not in DTYPES or param.size < 0:
                self._refuse(None, f"parameter {param.name!r} cannot be {param.dtype}[{param.size}] of mode {param.mode!r}")
            if param.mode == "scalar" and param.dtype not in ("i32", "u32"):
                self._refuse(None, f"parameter {param.name!r}: a literal is i32 or u32, not {param.dtype}")
            if param.size > _INT_LIMIT:
                self._refuse(None, f"parameter {param.name!r}: i32 cannot index {param.size} elements; split the buffer")
        for shared in kernel.shared:
            if shared.dtype not in COMPUTE_TYPES or shared.size <= 0:
                self._refuse(None, f"shared array {shared.name!r} cannot be {shared.dtype}[{shared.size}]")
            self._on_device(None, shared.dtype)
        total = sum(width(shared.dtype) // 8 * shared.size for shared in kernel.shared)
        if total > caps.shared_bytes:
            self._refuse(None, f"shared arrays take {total} bytes, the device has {caps.shared_bytes}; use smaller tiles")
        self._block(kernel.body, None)

    def _refuse(self, value: Value | None, why: str) -> None:
        lines = to_text(self.kernel).splitlines()
        number = 0 if value is None else statement_lines(self.kernel).get(value, 0)
        raise VerifyError(f"kernel {self.kernel.name!r}, line {number}: {why}\n  {lines[number].strip()}")

    # -- structure -------------------------------------------------------------------------------------------------
    def _block(self, block: Block, parent: Region | None) -> None:
        if block.parent is not parent:
            self._refuse(parent, "a block names another region as its parent")
        before = list(block.args)
        self.defined.update(before)
        for value in block.values:
            if value in self.seen:
                self._refuse(value, "the value stands in the kernel twice")
            if value.block is not block:
                self._refuse(value, "the value names another block as its own")
            self.seen.add(value)
            info = OPS.get(value.op)
            if info is None or value.op in ("arg", "result"):
                self._refuse(value, f"{value.op!r} is not an operation that stands in a block")
                return
            for position, argument in enumerate(value.args):
                if argument not in self.defined:
                    self._refuse(value, f"argument {position} ({argument.op}:{argument.dtype}) is not defined here")
            if isinstance(value, Region):
                self._region(value)
                self.defined.update(value.results)
                before += value.results
                continue
            self._signature(value)
            self._on_device(value, value.dtype)
            check = self.attributes.get(value.op)
            why = check(value) if check is not None else None
            if why is None and value.op in _SUBGROUP and not self.caps.subgroup_ops:
                why = "the device has no subgroup operations; reduce through shared memory"
            if why is not None:
                self._refuse(value, why)
            self.defined.add(value)
            before.append(value)
        if parent is not None:
            for position, result in enumerate(block.yields):
                if result not in self.defined:
                    self._refuse(parent, f"yielded value {position} ({result.op}:{result.dtype}) is not defined in its block")
        self.defined.difference_update(before if parent is not None else ())

    def _region(self, region: Region) -> None:
        results = [r.dtype for r in region.results]
        for position, result in enumerate(region.results):
            if result.op != "result" or result.args != (region,) or result.attr != (result.dtype, position):
                self._refuse(region, f"result {position} does not name its region and place")
        if region.op == "for":
            self._loop(region, results)
        elif region.op == "if":
            if len(region.blocks) != 2 or len(region.args) != 1 or region.args[0].dtype != "bool":
                self._refuse(region, "an if takes one bool and has two blocks")
        else:
            self._refuse(region, f"{region.op!r} is not a region")
        self.branches += region.op == "if"
        for block in region.blocks:
            if region.op == "if" and block.args:
                self._refuse(region, "a block of an if has no arguments")
            self._block(block, region)
            if [y.dtype for y in block.yields] != results:
                self._refuse(region, f"yields {[y.dtype for y in block.yields]}, the results are {results}")
        self.branches -= region.op == "if"

    def _loop(self, region: Region, results: list[str]) -> None:
        bounds = region.attr
        if not (isinstance(bounds, tuple) and len(bounds) == 3 and all(isinstance(b, int) for b in bounds)):
            self._refuse(region, f"loop bounds {bounds!r} are not three integers")
        start, stop, step = bounds
        if step <= 0:
            self._refuse(region, f"loop step {step} is not positive")
        if start < -_INT_LIMIT or max(start, stop) - 1 + step >= _INT_LIMIT:
            self._refuse(region, f"loop {start}..{stop} by {step} leaves the range of i32")
        if len(region.blocks) != 1:
            self._refuse(region, "a for has one block")
        carried = [a.dtype for a in region.args]
        arguments = region.blocks[0].args
        if carried != results or [a.dtype for a in arguments] != ["i32", *carried]:
            self._refuse(
                region, f"carries {carried}, arguments {[a.dtype for a in arguments]} and results {results} do not fit"
            )
        if any(a.op != "arg" or a.attr != i or a.block is not region.blocks[0] for i, a in enumerate(arguments)):
            self._refuse(region, "a block argument does not name its block and place")

    # -- types -----------------------------------------------------------------------------------------------------
    def _on_device(self, value: Value | None, dtype: str) -> None:
        if dtype in self.missing:
            self._refuse(value, f"the device does not compute with {dtype}")

    def _signature(self, value: Value) -> None:
        info, types = OPS[value.op], [a.dtype for a in value.args]
        if info.arity is not None and len(types) != info.arity:
            self._refuse(value, f"{value.op!r} takes {info.arity} arguments, has {len(types)}")
        if types and types[0] not in info.types.split():
            self._refuse(value, f"{value.op!r} does not take {types[0]} (takes {info.types})")
        if value.op in _SAME_TYPE and len(set(types)) != 1:
            self._refuse(value, f"{value.op!r} takes arguments of one type, has {types}")
        if value.op in ("shl", "shr") and types[1] not in _INTEGERS:
            self._refuse(value, f"{value.op!r} shifts by an integer, not by {types[1]}")
        if value.op == "select" and types[1] != types[2]:
            self._refuse(value, f"'select' chooses between {types[1]} and {types[2]}")
        if value.op == "shuffle" and types[1] != "i32":
            self._refuse(value, f"'shuffle' takes its lane as i32, not {types[1]}")
        attr = value.attr
        named = attr[0] if isinstance(attr, tuple) and attr else attr
        expected = {"same": types[:1], "second": types[1:2], "attr": [named]}.get(info.result, [info.result])
        if [value.dtype] != expected or (value.dtype != VOID and value.dtype not in COMPUTE_TYPES):
            self._refuse(value, f"{value.op!r} gives {expected[0] if expected else None}, not {value.dtype}")

    def _const(self, value: Value) -> str | None:
        number = value.attr[1] if isinstance(value.attr, tuple) and len(value.attr) == 2 else None
        if value.dtype == "bool":
            return None if isinstance(number, bool) else f"a bool constant is True or False, not {number!r}"
        if value.dtype in FLOATS:
            return None if isinstance(number, float) else f"an {value.dtype} constant is a float, not {number!r}"
        fits = isinstance(number, int) and not isinstance(number, bool) and wrap(number, value.dtype) == number
        return None if fits else f"{number!r} is not a constant of type {value.dtype}"

    def _builtin(self, value: Value) -> str | None:
        return None if value.attr in _BUILTINS else f"builtin {value.attr!r} is not one of {', '.join(_BUILTINS)}"

    def _convert(self, value: Value) -> str | None:
        return None if value.dtype in COMPUTE_TYPES else f"cannot convert to {value.dtype}"

    def _bitcast(self, value: Value) -> str | None:
        source = value.args[0].dtype
        same = value.dtype != "bool" and width(source) == width(value.dtype)
        return None if same else f"{source} and {value.dtype} have not the same number of bits"

    def _round_to(self, value: Value) -> str | None:
        return None if value.attr in ("f16", "bf16") else f"rounds to f16 or bf16, not {value.attr!r}"

    def _broadcast(self, value: Value) -> str | None:
        inside = isinstance(value.attr, int) and 0 <= value.attr < self.caps.subgroup_size
        return None if inside else f"lane {value.attr!r} is not in a subgroup of {self.caps.subgroup_size}"

    # -- memory ----------------------------------------------------------------------------------------------------
    def _buffer(self, value: Value, number: object, modes: tuple[str, ...], dtype: str) -> str | None:
        params = self.kernel.params
        if not isinstance(number, int) or not 0 <= number < len(params):
            return f"parameter {number!r} does not exist: the kernel has {len(params)}"
        param = params[number]
        if param.mode not in modes:
            return f"{value.op} of parameter {param.name!r}, whose mode is {param.mode!r}"
        if param.mode != "scalar" and value.args[0].dtype != "i32":
            return f"the index is {value.args[0].dtype}, not i32"
        compute = DTYPES[param.dtype].compute
        return None if dtype == compute else f"parameter {param.name!r} is {param.dtype} and holds {compute}, not {dtype}"

    def _load(self, value: Value) -> str | None:
        return self._buffer(value, value.attr[1], ("r", "rw"), value.dtype)

    def _store(self, value: Value) -> str | None:
        return self._buffer(value, value.attr, ("w", "rw"), value.args[1].dtype)

    def _scalar(self, value: Value) -> str | None:
        return self._buffer(value, value.attr[1], ("scalar",), value.dtype)

    def _array(self, number: object, dtype: str) -> str | None:
        shared = self.kernel.shared
        if not isinstance(number, int) or not 0 <= number < len(shared):
            return f"shared array {number!r} does not exist: the kernel has {len(shared)}"
        array = shared[number]
        return None if dtype == array.dtype else f"shared array {array.name!r} holds {array.dtype}, not {dtype}"

    def _shared_load(self, value: Value) -> str | None:
        return self._array(value.attr[1], value.dtype)

    def _shared_store(self, value: Value) -> str | None:
        return self._array(value.attr, value.args[1].dtype)

    def _barrier(self, value: Value) -> str | None:
        return "a barrier under a branch: lanes that skip it would hang the workgroup; move it out" if self.branches else None
