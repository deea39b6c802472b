"""Tile IR to SPIR-V: one kernel in, one Vulkan 1.2 compute module out.

Only values that a store or a barrier depends on are written, so passes may leave dead values behind. Floating-point
arithmetic is marked so that drivers neither contract it nor assume away NaN, infinities and signed zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.caps import DeviceCaps
from .dtypes import FLOATS
from .emit_memory import Arguments
from .emit_ops import GLSL, SIMPLE, SPECIAL, WITH_ZERO
from .errors import LoweringError
from .spirv import Code, Decoration, Module, Op
from .spirv_tools import InvalidSpirv, disassemble, validate
from .tile import Block, Kernel, Region, Value
from .verify import statement_lines, verify

__all__ = ["InvalidSpirv", "disassemble", "emit", "live_values", "validate"]

_EFFECTS = frozenset(("store", "shared_store", "barrier"))
_EXACT = frozenset(("add", "sub", "mul", "div", "neg", "lt", "le", "eq", "ne"))
# How one instruction is written: opcode word, GLSL instruction (or 0), whether it must stay exact.
_PLAIN: dict[tuple[str, str], tuple[int, int, bool]] = {
    **{key: (opcode, 0, key[1] in FLOATS and key[0] in _EXACT) for key, opcode in SIMPLE.items()},
    **{key: (Op.EXT_INST, instruction, False) for key, instruction in GLSL.items()},
}
_WORKGROUP_SCOPE, _ACQUIRE_RELEASE, _BUFFER_MEMORY, _SHARED_MEMORY = 2, 0x8, 0x40, 0x100


def emit(kernel: Kernel, caps: DeviceCaps, *, checked: bool = False, debug: bool = False) -> bytes:
    """SPIR-V of a kernel for devices with these capabilities. Equal kernels give equal bytes.

    Args:
        checked: verify the kernel first, and test every index against its buffer at run time: see `emit_bounds`.
        debug: add names and source lines.

    Raises:
        VerifyError: in checked mode, where the kernel breaks a rule of the tile IR.
        LoweringError: an operation has no code for its type.
    """
    if checked:
        verify(kernel, caps)
    return Emitter(kernel, caps, checked, debug).run()


def live_values(kernel: Kernel) -> set[Value]:
    """Values, arguments, results and regions that an effect depends on."""
    todo: list[Value] = []
    blocks = [kernel.body]
    while blocks:
        for value in blocks.pop().values:
            if value.op in _EFFECTS:
                todo.append(value)
            elif isinstance(value, Region):
                blocks.extend(value.blocks)
    live: set[Value] = set()
    while todo:
        value = todo.pop()
        if value in live:
            continue
        live.add(value)
        if value.block is not None and value.block.parent is not None:
            todo.append(value.block.parent)
        if value.op == "result":
            source, number = value.args[0], value.attr[1]
            assert isinstance(source, Region)
            todo.append(source)
            if source.op == "for":
                todo.append(source.blocks[0].args[number + 1])
            else:
                todo.extend(block.yields[number] for block in source.blocks)
        elif value.op == "arg":
            region = value.block.parent if value.block is not None else None
            assert isinstance(region, Region)
            if value.attr:  # a carried value; 0 is the loop index
                todo += (region.args[value.attr - 1], region.blocks[0].yields[value.attr - 1])
        elif value.op != "for":
            todo.extend(value.args)
    return live


class Emitter:
    """State of one emission: `ids` maps tile values to SPIR-V ids."""

    def __init__(self, kernel: Kernel, caps: DeviceCaps, checked: bool, debug: bool) -> None:
        self.kernel, self.caps, self.checked, self.debug = kernel, caps, checked, debug
        self.narrow_widths = frozenset(caps.storage)
        self.module = Module()
        self.ids: dict[Value, int] = {}
        self.narrow_bits: dict[Value, tuple[str, int]] = {}
        """f16 and bf16 bits (u32) of values that came from such bits: (type, id)."""
        self.live = live_values(kernel)
        self.lines = statement_lines(kernel) if checked or debug else {}
        self.float_zeros: set[Value] = set()
        """Constants 0.0 and -0.0 met so far."""
        self.zero = self.module.literal("i32", 0)
        self.code = Code(self.module, self.module.void)
        self._workgroup_id = 0

    def run(self) -> bytes:
        if self.kernel.packed or any(v.op == "builtin" and v.attr.startswith("group_") for v in self.live):
            self.workgroup_id()
        used = {v.attr[1] if v.op != "store" else v.attr for v in self.live if v.op in ("load", "store", "scalar")}
        self.arguments = Arguments(self, used)
        self.statements: dict[str, Callable[[Value], None]] = {
            "load": self.arguments.load,
            "store": self.arguments.store,
            "scalar": self.arguments.scalar,
            "shared_load": self.arguments.shared_load,
            "shared_store": self.arguments.shared_store,
            "barrier": self._barrier,
            "for": self._loop,
            "if": self._branch,
        }
        if self.debug:
            self._names()
        self._block(self.kernel.body)
        if self.arguments.bounds:
            self.arguments.bounds.report(self.arguments.errors)
        entry = self.code.finish()
        caps = self.caps
        kept = [32] * caps.float_controls + [64] * (caps.float_controls64 and "f64" in self.module.types)
        return self.module.to_bytes(entry, self.kernel.local_size, kept)

    def workgroup_id(self) -> int:
        """The workgroup's id, a vector of three u32, loaded once at the top."""
        if not self._workgroup_id:
            vector = self.module.type(Op.TYPE_VECTOR, self.module.u32, 3)
            self._workgroup_id = self.code.op(Op.LOAD, vector, self.module.builtin("workgroup", vector))
        return self._workgroup_id

    # -- values ----------------------------------------------------------------------------------------------------
    def _block(self, block: Block) -> None:
        ids, live, module, types = self.ids, self.live, self.module, self.module.types
        words, decorations, glsl, statements = self.code.words, module.decorations, module.glsl, self.statements
        float_zeros = self.float_zeros
        for value in block.values:
            if value not in live:
                continue
            if self.debug:
                self._line(value)
            op, args = value.op, value.args
            key = (op, args[0].dtype) if args else (op, value.dtype)
            plain = _PLAIN.get(key)
            if plain is None:
                statement = statements.get(op)
                if statement is not None:
                    statement(value)
                    continue
                special = SPECIAL.get(op) or SPECIAL.get(key)
                if special is None:
                    raise LoweringError(f"kernel {self.kernel.name!r}: no SPIR-V for tile op {op!r} on {key[1]}")
                ids[value] = special(self, value)
                continue
            if op in WITH_ZERO and not float_zeros.isdisjoint(args):
                ids[value] = WITH_ZERO[op](self, value)
                continue
            opcode, instruction, exact = plain
            number = module.bound
            module.bound = number + 1
            ids[value] = number
            if instruction:
                words += ((len(args) + 5) << 16 | opcode, types[value.dtype], number, glsl, instruction)
                words += [ids[a] for a in args]
            elif len(args) == 2:
                words += (5 << 16 | opcode, types[value.dtype], number, ids[args[0]], ids[args[1]])
            else:
                words += ((len(args) + 3) << 16 | opcode, types[value.dtype], number)
                words += [ids[a] for a in args]
            if exact:
                decorations += (3 << 16 | Op.DECORATE, number, Decoration.NO_CONTRACTION)

    def _barrier(self, value: Value) -> None:
        u, scope = self.module.u, self.module.u(_WORKGROUP_SCOPE)
        self.code.do(Op.CONTROL_BARRIER, scope, scope, u(_ACQUIRE_RELEASE | _BUFFER_MEMORY | _SHARED_MEMORY))

    # -- control flow ----------------------------------------------------------------------------------------------
    def _loop(self, region: Value) -> None:
        assert isinstance(region, Region)
        ids, live, code, module = self.ids, self.live, self.code, self.module
        (start, stop, step), body = region.attr, region.blocks[0]
        carried = [i for i, argument in enumerate(body.args[1:]) if argument in live]
        if start + step >= stop:  # no round or one: no loop
            if start < stop:
                ids[body.args[0]] = module.literal("i32", start)
                for i in carried:
                    ids[body.args[i + 1]] = ids[region.args[i]]
                self._block(body)
            for i in carried:
                ids[region.results[i]] = ids[body.yields[i] if start < stop else region.args[i]]
            return
        head, inside, following, after = (module.new_id() for _ in range(4))
        entry = code.label
        code.jump(head)
        code.start(head)
        index, index_hole = code.phi(module.i32, module.literal("i32", start), entry, following)
        ids[body.args[0]] = index
        holes = []
        for i in carried:
            argument = body.args[i + 1]
            ids[argument], hole = code.phi(module.types[argument.dtype], ids[region.args[i]], entry, following)
            ids[region.results[i]] = ids[argument]
            holes.append(hole)
        more = code.op(Op.S_LT, module.bool_, index, module.literal("i32", stop))
        code.do(Op.LOOP_MERGE, after, following, 0)
        code.do(Op.BRANCH_CONDITIONAL, more, inside, after)
        code.start(inside)
        self._block(body)
        code.jump(following)
        code.start(following)
        code.words[index_hole] = code.op(Op.I_ADD, module.i32, index, module.literal("i32", step))
        for i, hole in zip(carried, holes, strict=True):
            code.words[hole] = ids[body.yields[i]]
        code.jump(head)
        code.start(after)

    def _branch(self, region: Value) -> None:
        assert isinstance(region, Region)
        ids, code, module = self.ids, self.code, self.module
        results = [i for i, result in enumerate(region.results) if result in self.live]
        merge = module.new_id()
        # A side without live values needs no block of its own.
        targets = [module.new_id() if any(v in self.live for v in block.values) else merge for block in region.blocks]
        head = code.label
        code.do(Op.SELECTION_MERGE, merge, 0)
        code.do(Op.BRANCH_CONDITIONAL, ids[region.args[0]], *targets)
        exits = []
        for block, target in zip(region.blocks, targets, strict=True):
            if target != merge:
                code.start(target)
                self._block(block)
                code.jump(merge)
            exits.append(code.label if target != merge else head)
        code.start(merge)
        for i in results:
            result = region.results[i]
            if exits[0] == exits[1]:  # nothing to run on either side
                chosen = [ids[block.yields[i]] for block in region.blocks]
                ids[result] = code.op(Op.SELECT, module.types[result.dtype], ids[region.args[0]], *chosen)
                continue
            (yes, no), (yes_exit, no_exit) = (ids[block.yields[i]] for block in region.blocks), exits
            ids[result] = code.op(Op.PHI, module.types[result.dtype], yes, yes_exit, no, no_exit)

    # -- debugging -------------------------------------------------------------------------------------------------
    def _names(self) -> None:
        self.module.name(self.code.id, self.kernel.name)
        for number, param in enumerate(self.kernel.params):
            if number in self.arguments.ids:
                self.module.name(self.arguments.ids[number], param.name)

    def _line(self, value: Value) -> None:
        """Attach the user's line ("file:line ..."), or else the line of the kernel's text."""
        file, _, rest = value.source.partition(":")
        digits = rest.split()[0] if rest.split() else ""
        place = (file, int(digits)) if digits.isdigit() else (self.kernel.name, self.lines[value])
        self.code.do(Op.LINE, self.module.string(place[0]), place[1], 0)
