"""Buffers and shared arrays of a kernel in SPIR-V: how they are reached, widened, narrowed and bounds-checked.

Calling convention: the push constants are two addresses, of the argument rows and of the workgroups' row numbers
(packed kernels only). A row holds 8 bytes a parameter: the address of a buffer, or a literal in the low half. In
checked mode one entry more, the address of the error record of `emit_bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dtypes import DTYPES, DType
from .emit_bounds import Bounds
from .emit_math import helper
from .spirv import ALIGNED, Capability, Module, Op, Storage
from .tile import Value

if TYPE_CHECKING:
    from .emit import Emitter

ROW_ENTRY = 8  # bytes a parameter takes in a row


@dataclass(frozen=True)
class Element:
    """How elements of a type lie in a buffer: SPIR-V type, bytes, and the widths the device can address."""

    dtype: DType
    type_id: int
    nbytes: int

    @property
    def in_word(self) -> bool:
        """Whether a narrow element takes a whole word because the device cannot address its width."""
        return self.nbytes == 4 and self.dtype.bits < 32


def element(module: Module, name: str, narrow: frozenset[int]) -> Element:
    """Layout of element type `name`; asks for the storage capability it needs."""
    dtype = DTYPES[name]
    nbytes = dtype.storage_bytes(narrow)
    if nbytes < 4:
        module.capabilities.add(Capability.STORAGE_8 if nbytes == 1 else Capability.STORAGE_16)
    if dtype.compute == name != "bool":
        return Element(dtype, module.types[name], nbytes)
    return Element(dtype, module.type(Op.TYPE_INT, 8 * nbytes, int(dtype.kind == "i")), nbytes)


def widen(e: Emitter, kind: Element, raw: int, value: Value) -> int:
    """The compute value of a loaded element."""
    code, module, name = e.code, e.module, kind.dtype.name
    if kind.dtype.bits >= 32:
        return raw
    if kind.dtype.kind == "i":
        if kind.in_word:
            return code.op(Op.BIT_FIELD_S_EXTRACT, module.i32, raw, module.u(0), module.u(kind.dtype.bits))
        return code.op(Op.S_CONVERT, module.i32, raw)
    bits = raw if kind.in_word else code.op(Op.U_CONVERT, module.u32, raw)
    if name == "bool":
        return code.op(Op.I_NE, module.bool_, bits, module.u(0))
    if kind.dtype.kind == "u":
        return bits
    e.narrow_bits[value] = (name, bits)
    if name == "bf16":
        return code.op(Op.BITCAST, module.f32, code.op(Op.SHIFT_LEFT, module.u32, bits, module.u(16)))
    return code.op(Op.FUNCTION_CALL, module.f32, helper(module, "f16_to_float"), bits)


def narrow(e: Emitter, kind: Element, value: Value) -> int:
    """The stored element of a compute value."""
    code, module, name, number = e.code, e.module, kind.dtype.name, e.ids[value]
    if kind.dtype.bits >= 32:
        return number
    if name == "bool":
        number = code.op(Op.SELECT, module.u32, number, module.u(1), module.u(0))
    elif kind.dtype.kind == "f":
        known = e.narrow_bits.get(value)
        if known is not None and known[0] == name:
            number = known[1]
        else:
            number = code.op(Op.FUNCTION_CALL, module.u32, helper(module, f"float_to_{name}"), number)
    if not kind.in_word:
        return code.op(Op.S_CONVERT if kind.dtype.kind == "i" else Op.U_CONVERT, kind.type_id, number)
    if kind.dtype.kind == "i":
        return code.op(Op.BIT_AND, module.i32, number, module.literal("i32", (1 << kind.dtype.bits) - 1))
    return number


class Arguments:
    """Addresses and literals of a kernel's parameters, loaded from its row at the top of the function."""

    def __init__(self, e: Emitter, used: set[int]) -> None:
        """Emit the loads of the parameters in `used`, and of the error buffer in checked mode."""
        module, params = e.module, e.kernel.params
        self.emitter = e
        self.elements = [element(module, p.dtype, e.narrow_widths) if i in used else None for i, p in enumerate(params)]
        types, members = [], []
        for i, param in enumerate(params):
            kind = self.elements[i]
            if kind is not None and param.mode != "scalar":
                members.append((i, module.runtime_array(kind.type_id, kind.nbytes)))
                types.append(module.pointer(Storage.PHYSICAL, kind.type_id))
            else:
                if kind is not None:
                    members.append((i, kind.type_id))
                types.append(0)
        self.element_pointers = types
        if e.checked:
            members.append((len(params), module.runtime_array(module.u32, 4)))
        self.ids: dict[int, int] = {}
        if members:
            self._load(members, ROW_ENTRY * (len(params) + e.checked))
        self.errors = self.ids.get(len(params), 0)
        self.bounds = Bounds(e) if e.checked else None

    def _load(self, members: list[tuple[int, int]], stride: int) -> None:
        e, module, code = self.emitter, self.emitter.module, self.emitter.code
        row = module.structure([t for _, t in members], [ROW_ENTRY * i for i, _ in members])
        rows_type, numbers_type = module.runtime_array(row, stride), module.runtime_array(module.u32, 4)
        push = module.variable(Storage.PUSH_CONSTANT, module.block([rows_type, numbers_type], [0, 8]))
        module.name(push, "push")

        def pushed(member: int, type_id: int) -> int:
            pointer = module.pointer(Storage.PUSH_CONSTANT, type_id)
            return code.op(Op.LOAD, type_id, code.op(Op.ACCESS_CHAIN, pointer, push, module.u(member)))

        number = module.u(0)
        if e.kernel.packed:
            group = code.op(Op.COMPOSITE_EXTRACT, module.u32, e.workgroup_id(), 0)
            pointer = module.pointer(Storage.PHYSICAL, module.u32)
            place = code.op(Op.ACCESS_CHAIN, pointer, pushed(1, numbers_type), module.u(0), group)
            number = code.op(Op.LOAD, module.u32, place, ALIGNED, 4)
        rows = pushed(0, rows_type)
        # One load an entry: not every driver takes pointers out of a struct that is loaded whole.
        for position, (param, type_id) in enumerate(members):
            pointer = module.pointer(Storage.PHYSICAL, type_id)
            place = code.op(Op.ACCESS_CHAIN, pointer, rows, module.u(0), number, module.u(position))
            is_address = param == len(e.kernel.params) or e.kernel.params[param].mode != "scalar"
            self.ids[param] = code.op(Op.LOAD, type_id, place, ALIGNED, ROW_ENTRY if is_address else 4)

    def load(self, value: Value) -> None:
        e = self.emitter
        param = value.attr[1]
        kind = self.elements[param]
        assert kind is not None
        index = e.ids[value.args[0]]
        if self.bounds:
            index = self.bounds.clamp(value, index, param, e.kernel.params[param].size)
        place = e.code.op(Op.ACCESS_CHAIN, self.element_pointers[param], self.ids[param], e.zero, index)
        e.ids[value] = widen(e, kind, e.code.op(Op.LOAD, kind.type_id, place, ALIGNED, kind.nbytes), value)

    def store(self, value: Value) -> None:
        e = self.emitter
        param = value.attr
        kind = self.elements[param]
        assert kind is not None
        index = e.ids[value.args[0]]
        number = narrow(e, kind, value.args[1])
        after = self.bounds.guard(value, index, param, e.kernel.params[param].size) if self.bounds else 0
        place = e.code.op(Op.ACCESS_CHAIN, self.element_pointers[param], self.ids[param], e.zero, index)
        e.code.do(Op.STORE, place, number, ALIGNED, kind.nbytes)
        if after:
            e.code.jump(after)
            e.code.start(after)

    def scalar(self, value: Value) -> None:
        self.emitter.ids[value] = self.ids[value.attr[1]]

    # -- shared arrays ---------------------------------------------------------------------------------------------
    def _shared_place(self, array: int, index: int) -> int:
        e, module, info = self.emitter, self.emitter.module, self.emitter.kernel.shared[array]
        type_id = module.types[info.dtype]

        def declare() -> int:
            variable = module.variable(Storage.WORKGROUP, module.type(Op.TYPE_ARRAY, type_id, module.u(info.size)))
            module.name(variable, f"shared_{array}")
            return variable

        variable = module.once(("shared", array), declare)
        return e.code.op(Op.ACCESS_CHAIN, module.pointer(Storage.WORKGROUP, type_id), variable, index)

    def shared_load(self, value: Value) -> None:
        e = self.emitter
        array, index = value.attr[1], e.ids[value.args[0]]
        if self.bounds:
            index = self.bounds.clamp(value, index, len(e.kernel.params) + array, e.kernel.shared[array].size)
        e.ids[value] = e.code.op(Op.LOAD, e.module.types[value.dtype], self._shared_place(array, index))

    def shared_store(self, value: Value) -> None:
        e = self.emitter
        array, index = value.attr, e.ids[value.args[0]]
        number = e.ids[value.args[1]]
        after = self.bounds.guard(value, index, len(e.kernel.params) + array, e.kernel.shared[array].size) if self.bounds else 0
        e.code.do(Op.STORE, self._shared_place(array, index), number)
        if after:
            e.code.jump(after)
            e.code.start(after)
