"""SPIR-V binary writer: a module with shared types and constants, and the code of one function.

A module is a few lists of words, one a section, in the order the format wants them. Ids are handed out in the
order of the calls, so equal calls give equal bytes. Only the opcodes that `emit` uses are named here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence

from .dtypes import WIDE

MAGIC, VERSION_1_5 = 0x07230203, 0x00010500


class Op:
    """Opcode numbers."""

    STRING, LINE, NAME = 7, 8, 5
    EXT_INST_IMPORT, EXT_INST, MEMORY_MODEL, ENTRY_POINT, EXECUTION_MODE, CAPABILITY = 11, 12, 14, 15, 16, 17
    TYPE_VOID, TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR = 19, 20, 21, 22, 23
    TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER, TYPE_FUNCTION, TYPE_FORWARD_POINTER = 28, 29, 30, 32, 33, 39
    CONSTANT_TRUE, CONSTANT_FALSE, CONSTANT = 41, 42, 43
    FUNCTION, FUNCTION_PARAMETER, FUNCTION_END, FUNCTION_CALL, VARIABLE = 54, 55, 56, 57, 59
    LOAD, STORE, ACCESS_CHAIN, DECORATE, MEMBER_DECORATE, COMPOSITE_EXTRACT = 61, 62, 65, 71, 72, 81
    F_TO_U, F_TO_S, S_TO_F, U_TO_F, U_CONVERT, S_CONVERT, F_CONVERT, BITCAST = 109, 110, 111, 112, 113, 114, 115, 124
    S_NEGATE, F_NEGATE, I_ADD, F_ADD, I_SUB, F_SUB, I_MUL, F_MUL = 126, 127, 128, 129, 130, 131, 132, 133
    U_DIV, S_DIV, F_DIV, U_MOD, S_REM = 134, 135, 136, 137, 138
    LOGICAL_EQ, LOGICAL_NE, LOGICAL_OR, LOGICAL_AND, LOGICAL_NOT, SELECT = 164, 165, 166, 167, 168, 169
    I_EQ, I_NE, U_GT, U_GE, U_LT, S_LT, U_LE, S_LE = 170, 171, 172, 174, 176, 177, 178, 179
    F_EQ, F_ORD_NE, F_UNORD_NE, F_LT, F_UNORD_LT, F_GT, F_UNORD_GT, F_LE = 180, 182, 183, 184, 185, 186, 187, 188
    SHIFT_RIGHT_LOGICAL, SHIFT_RIGHT_ARITHMETIC, SHIFT_LEFT = 194, 195, 196
    BIT_OR, BIT_XOR, BIT_AND, BIT_NOT = 197, 198, 199, 200
    BIT_FIELD_S_EXTRACT, BIT_COUNT, CONTROL_BARRIER, ATOMIC_I_ADD = 202, 205, 224, 234
    PHI, LOOP_MERGE, SELECTION_MERGE, LABEL, BRANCH, BRANCH_CONDITIONAL = 245, 246, 247, 248, 249, 250
    RETURN, RETURN_VALUE = 253, 254
    SUBGROUP_BROADCAST, SUBGROUP_SHUFFLE, SUBGROUP_I_ADD, SUBGROUP_F_ADD = 337, 345, 349, 350
    SUBGROUP_S_MIN, SUBGROUP_U_MIN, SUBGROUP_F_MIN = 353, 354, 355
    SUBGROUP_S_MAX, SUBGROUP_U_MAX, SUBGROUP_F_MAX = 356, 357, 358


class Glsl:
    """Instruction numbers of GLSL.std.450."""

    ROUND_EVEN, TRUNC, F_ABS, S_ABS, FLOOR, CEIL, SQRT = 2, 3, 4, 5, 8, 9, 31
    U_MIN, S_MIN, U_MAX, S_MAX, FMA, FIND_U_MSB = 38, 39, 41, 42, 50, 75


class Capability:
    SHADER, FLOAT_64, INT_64, GROUP, GROUP_ARITHMETIC, GROUP_BALLOT, GROUP_SHUFFLE = 1, 10, 11, 61, 63, 64, 65
    STORAGE_16, STORAGE_8, SIGNED_ZERO_INF_NAN, PHYSICAL_ADDRESSES = 4433, 4448, 4466, 5347


class Storage:
    """Storage classes."""

    INPUT, WORKGROUP, PRIVATE, PUSH_CONSTANT, PHYSICAL = 1, 4, 6, 9, 5349


class Decoration:
    BLOCK, ARRAY_STRIDE, BUILTIN, ALIASED, OFFSET, NO_CONTRACTION = 2, 6, 11, 20, 35, 42


BUILTINS = {"workgroup": 26, "subgroup": 40, "lane": 41}
ALIGNED = 2  # memory operand of a load or store
_SIGNED_ZERO_INF_NAN_MODE, _LOCAL_SIZE_MODE, _GLCOMPUTE, _PHYSICAL_64, _GLSL450_MODEL = 4461, 17, 5, 5348, 1


def float_word(value: float) -> int:
    """Bits of a float32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def double_bits(value: float) -> int:
    """Bits of a float64."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def text_words(text: str) -> list[int]:
    """A literal string: UTF-8, ended by a zero byte, padded to whole words."""
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


class Module:
    """A compute module with one entry point, "main".

    `bool_`, `i32`, `u32`, `f32` and `void` are the type ids that code needs everywhere; `types` maps compute types to them.
    """

    def __init__(self) -> None:
        self.bound = 1
        self.capabilities = {Capability.SHADER, Capability.PHYSICAL_ADDRESSES}
        self.strings: list[int] = []
        self.names: list[int] = []
        self.decorations: list[int] = []
        self.globals: list[int] = []
        self.functions: list[int] = []
        self.interface: list[int] = []
        self._shared: dict[tuple, int] = {}
        self.glsl = self.new_id()
        self.void = self.type(Op.TYPE_VOID)
        self.bool_ = self.type(Op.TYPE_BOOL)
        self.i32 = self.type(Op.TYPE_INT, 32, 1)
        self.u32 = self.type(Op.TYPE_INT, 32, 0)
        self.f32 = self.type(Op.TYPE_FLOAT, 32)
        self.types = _Types(self)

    def new_id(self) -> int:
        number = self.bound
        self.bound = number + 1
        return number

    def once(self, key: tuple, make: Callable[[], int]) -> int:
        """The id that `make` gave the first time `key` was asked for."""
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = make()
        return found

    # -- types and constants -------------------------------------------------------------------------------------
    def type(self, opcode: int, *operands: int) -> int:
        """Id of a type without decorations."""
        return self.once((opcode, *operands), lambda: self.new_type(opcode, *operands))

    def new_type(self, opcode: int, *operands: int) -> int:
        """Id of a type of its own, to be decorated by the caller."""
        number = self.new_id()
        self.globals += ((len(operands) + 2) << 16 | opcode, number, *operands)
        return number

    def pointer(self, storage: int, pointee: int) -> int:
        return self.type(Op.TYPE_POINTER, storage, pointee)

    def constant(self, type_id: int, *words: int) -> int:
        """Id of the constant with these bits, the low word first."""
        key = (Op.CONSTANT, type_id, *words)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.new_id()
            self.globals += ((3 + len(words)) << 16 | Op.CONSTANT, type_id, found, *words)
        return found

    def literal(self, dtype: str, value: float) -> int:
        """Id of a constant of a compute type."""
        if dtype == "f32":
            return self.constant(self.f32, float_word(value))
        if dtype == "bool":
            return self.true if value else self.false
        if dtype in WIDE:
            bits = double_bits(value) if dtype == "f64" else int(value)
            return self.constant(self.types[dtype], bits & 0xFFFFFFFF, bits >> 32 & 0xFFFFFFFF)
        return self.constant(self.types[dtype], int(value) & 0xFFFFFFFF)

    def u(self, value: int) -> int:
        return self.constant(self.u32, value & 0xFFFFFFFF)

    @property
    def true(self) -> int:
        return self.once((Op.CONSTANT_TRUE,), lambda: self._bool(Op.CONSTANT_TRUE))

    @property
    def false(self) -> int:
        return self.once((Op.CONSTANT_FALSE,), lambda: self._bool(Op.CONSTANT_FALSE))

    def _bool(self, opcode: int) -> int:
        number = self.new_id()
        self.globals += (3 << 16 | opcode, self.bool_, number)
        return number

    def runtime_array(self, element: int, stride: int) -> int:
        """Pointer type to a block that holds one unbounded array of `element`, `stride` bytes apart, in physical storage."""

        def make() -> int:
            elements = self.new_type(Op.TYPE_RUNTIME_ARRAY, element)
            self.decorate(elements, Decoration.ARRAY_STRIDE, stride)
            # The forward declaration keeps the validator from looking through the pointer for narrow types.
            block, number = self.block([elements], [0]), self.new_id()
            self.globals += (3 << 16 | Op.TYPE_FORWARD_POINTER, number, Storage.PHYSICAL)
            self.globals += (4 << 16 | Op.TYPE_POINTER, number, Storage.PHYSICAL, block)
            return number

        return self.once(("runtime_array", element, stride), make)

    def block(self, members: Sequence[int], offsets: Sequence[int]) -> int:
        """A struct type laid out by `offsets`, decorated as a block."""
        number = self.structure(members, offsets)
        self.decorate(number, Decoration.BLOCK)
        return number

    def structure(self, members: Sequence[int], offsets: Sequence[int]) -> int:
        """A struct type with the members at these byte offsets."""
        number = self.new_type(Op.TYPE_STRUCT, *members)
        for i, offset in enumerate(offsets):
            self.decorations += (5 << 16 | Op.MEMBER_DECORATE, number, i, Decoration.OFFSET, offset)
        return number

    # -- variables, names ------------------------------------------------------------------------------------------
    def variable(self, storage: int, pointee: int, *initial: int) -> int:
        """A module-level variable, perhaps with an initial constant; part of the entry point's interface."""
        pointer, number = self.pointer(storage, pointee), self.new_id()
        self.globals += ((4 + len(initial)) << 16 | Op.VARIABLE, pointer, number, storage, *initial)
        self.interface.append(number)
        return number

    def builtin(self, name: str, type_id: int) -> int:
        """The input variable of a builtin of `BUILTINS`."""

        def make() -> int:
            number = self.variable(Storage.INPUT, type_id)
            self.decorate(number, Decoration.BUILTIN, BUILTINS[name])
            return number

        return self.once(("builtin", name), make)

    def decorate(self, target: int, *words: int) -> None:
        self.decorations += ((len(words) + 2) << 16 | Op.DECORATE, target, *words)

    def name(self, target: int, text: str) -> None:
        words = text_words(text)
        self.names += ((len(words) + 2) << 16 | Op.NAME, target, *words)

    def string(self, text: str) -> int:
        def make() -> int:
            words, number = text_words(text), self.new_id()
            self.strings.extend(((len(words) + 2) << 16 | Op.STRING, number, *words))
            return number

        return self.once(("string", text), make)

    # -- the binary ------------------------------------------------------------------------------------------------
    def to_bytes(self, entry: int, local_size: int, keep_specials: Sequence[int]) -> bytes:
        """The module as bytes. `keep_specials`: widths of floats whose signed zeros, infinities and NaN count."""
        capabilities = self.capabilities | ({Capability.SIGNED_ZERO_INF_NAN} if keep_specials else set())
        head = [MAGIC, VERSION_1_5, 0, self.bound, 0]
        for capability in sorted(capabilities):
            head += (2 << 16 | Op.CAPABILITY, capability)
        glsl, main = text_words("GLSL.std.450"), text_words("main")
        head += ((2 + len(glsl)) << 16 | Op.EXT_INST_IMPORT, self.glsl, *glsl)
        head += (3 << 16 | Op.MEMORY_MODEL, _PHYSICAL_64, _GLSL450_MODEL)
        head += ((3 + len(main) + len(self.interface)) << 16 | Op.ENTRY_POINT, _GLCOMPUTE, entry, *main, *self.interface)
        head += (6 << 16 | Op.EXECUTION_MODE, entry, _LOCAL_SIZE_MODE, local_size, 1, 1)
        for bits in keep_specials:
            head += (4 << 16 | Op.EXECUTION_MODE, entry, _SIGNED_ZERO_INF_NAN_MODE, bits)
        return array("I", head + self.strings + self.names + self.decorations + self.globals + self.functions).tobytes()


class _Types(dict[str, int]):
    """Type ids of the compute types; the 64-bit ones, and the capabilities they take, are declared where first asked for."""

    def __init__(self, module: Module) -> None:
        super().__init__(bool=module.bool_, i32=module.i32, u32=module.u32, f32=module.f32, void=module.void)
        self.module = module

    def __missing__(self, name: str) -> int:
        module = self.module
        if name == "f64":
            module.capabilities.add(Capability.FLOAT_64)
            self[name] = module.type(Op.TYPE_FLOAT, 64)
        else:
            module.capabilities.add(Capability.INT_64)
            self[name] = module.type(Op.TYPE_INT, 64, int(name == "i64"))
        return self[name]


class Code:
    """The body of one function: instructions are appended to `words`, `label` is the current basic block."""

    def __init__(self, module: Module, result: int, parameters: Sequence[int] = ()) -> None:
        self.module = module
        self.id, self.label = module.new_id(), 0
        signature = module.type(Op.TYPE_FUNCTION, result, *parameters)
        self.words: list[int] = [5 << 16 | Op.FUNCTION, result, self.id, 0, signature]
        self.parameters = tuple(self.op(Op.FUNCTION_PARAMETER, p) for p in parameters)
        self.start(module.new_id())

    def op(self, opcode: int, type_id: int, *operands: int) -> int:
        """An instruction with a result."""
        number = self.module.new_id()
        self.words += ((3 + len(operands)) << 16 | opcode, type_id, number, *operands)
        return number

    def do(self, opcode: int, *operands: int) -> None:
        """An instruction without a result."""
        self.words += ((1 + len(operands)) << 16 | opcode, *operands)

    def glsl(self, instruction: int, type_id: int, *operands: int) -> int:
        return self.op(Op.EXT_INST, type_id, self.module.glsl, instruction, *operands)

    def exact(self, opcode: int, type_id: int, *operands: int) -> int:
        """A float instruction that must not be merged with others."""
        number = self.op(opcode, type_id, *operands)
        self.module.decorate(number, Decoration.NO_CONTRACTION)
        return number

    def halves(self, number: int) -> tuple[int, int]:
        """Low and high word (u32) of a 64-bit value."""
        u32 = self.module.u32
        pair = self.op(Op.BITCAST, self.module.type(Op.TYPE_VECTOR, u32, 2), number)
        return self.op(Op.COMPOSITE_EXTRACT, u32, pair, 0), self.op(Op.COMPOSITE_EXTRACT, u32, pair, 1)

    def start(self, label: int) -> None:
        """Begin the basic block `label`."""
        self.words += (2 << 16 | Op.LABEL, label)
        self.label = label

    def jump(self, label: int) -> None:
        self.words += (2 << 16 | Op.BRANCH, label)

    def phi(self, type_id: int, value: int, label: int, back_label: int) -> tuple[int, int]:
        """A loop variable: `value` when coming from `label`; returns its id and the position to put the next value at."""
        number = self.op(Op.PHI, type_id, value, label, 0, back_label)
        return number, len(self.words) - 2

    def finish(self, result: int | None = None) -> int:
        """End the function, add it to the module, return its id."""
        if result is None:
            self.do(Op.RETURN)
        else:
            self.do(Op.RETURN_VALUE, result)
        self.do(Op.FUNCTION_END)
        self.module.functions += self.words
        return self.id
