"""Bounds tests of checked kernels: every index against its buffer, and the report of one that lies outside.

An access outside does not happen: a load reads element 0 instead, a store is left out. Each lane remembers its last such
access in two private variables, at the cost of a compare and two selects; a branch and an atomic at every access would make
drivers compile ten times as long. The end of the kernel writes what was remembered into the error record of the dispatch:
word 0 counts lanes, words 1 to 3 hold parameter, index and statement of the first lane to arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import LoweringError
from .spirv import ALIGNED, Code, Op, Storage
from .tile import Value

if TYPE_CHECKING:
    from .emit import Emitter

_PARAMETER_BITS = 10  # a tag is a statement number above a parameter number; 0 means that nothing went wrong
_DEVICE_SCOPE, _RELAXED = 1, 0


class Bounds:
    """Writes the tests of one kernel."""

    def __init__(self, e: Emitter) -> None:
        self.emitter = e
        module = e.module
        self.tag, self.index = (module.variable(Storage.PRIVATE, module.u32, module.u(0)) for _ in range(2))
        if (len(e.kernel.params) + len(e.kernel.shared)) >> _PARAMETER_BITS:
            raise LoweringError(f"kernel {e.kernel.name!r}: too many parameters for a bounds test")

    def clamp(self, value: Value, index: int, param: int, size: int) -> int:
        """The index, or 0 where it is outside."""
        e = self.emitter
        return e.code.op(Op.SELECT, e.module.i32, self._inside(value, index, param, size), index, e.zero)

    def guard(self, value: Value, index: int, param: int, size: int) -> int:
        """Begin a block that runs only inside the bounds; returns the label to continue at."""
        e = self.emitter
        inside = self._inside(value, index, param, size)
        body, after = e.module.new_id(), e.module.new_id()
        e.code.do(Op.SELECTION_MERGE, after, 0)
        e.code.do(Op.BRANCH_CONDITIONAL, inside, body, after)
        e.code.start(body)
        return after

    def _inside(self, value: Value, index: int, param: int, size: int) -> int:
        """Whether the index is inside. Shared arrays count as parameters after the last one."""
        e, u = self.emitter, self.emitter.module.u
        unsigned = e.code.op(Op.BITCAST, e.module.u32, index)
        tag = e.lines[value] << _PARAMETER_BITS | param
        test = e.module.once(("in_bounds",), self._write_test)
        return e.code.op(Op.FUNCTION_CALL, e.module.bool_, test, unsigned, u(size), u(tag))

    def _write_test(self) -> int:
        """(index, size, tag) -> whether index < size; a failure is remembered."""
        module, u32 = self.emitter.module, self.emitter.module.u32
        code = Code(module, module.bool_, [u32, u32, u32])
        index, size, tag = code.parameters
        inside = code.op(Op.U_LT, module.bool_, index, size)
        for variable, new in ((self.index, index), (self.tag, tag)):
            code.do(Op.STORE, variable, code.op(Op.SELECT, u32, inside, code.op(Op.LOAD, u32, variable), new))
        return code.finish(inside)

    def report(self, errors: int) -> None:
        """End of the kernel: count the lane in the record at `errors`, and fill in the record if it is the first."""
        e = self.emitter
        code, module, u, u32 = e.code, e.module, e.module.u, e.module.u32
        word = module.pointer(Storage.PHYSICAL, u32)

        def place(position: int) -> int:
            return code.op(Op.ACCESS_CHAIN, word, errors, u(0), u(position))

        tag = code.op(Op.LOAD, u32, self.tag)
        wrong = code.op(Op.I_NE, module.bool_, tag, u(0))
        failed, first, inner, merge = (module.new_id() for _ in range(4))
        code.do(Op.SELECTION_MERGE, merge, 0)
        code.do(Op.BRANCH_CONDITIONAL, wrong, failed, merge)
        code.start(failed)
        before = code.op(Op.ATOMIC_I_ADD, u32, place(0), u(_DEVICE_SCOPE), u(_RELAXED), u(1))
        is_first = code.op(Op.I_EQ, module.bool_, before, u(0))
        code.do(Op.SELECTION_MERGE, inner, 0)
        code.do(Op.BRANCH_CONDITIONAL, is_first, first, inner)
        code.start(first)
        parameter = code.op(Op.BIT_AND, u32, tag, u((1 << _PARAMETER_BITS) - 1))
        statement = code.op(Op.SHIFT_RIGHT_LOGICAL, u32, tag, u(_PARAMETER_BITS))
        index = code.op(Op.LOAD, u32, self.index)
        for position, number in enumerate((parameter, index, statement), start=1):
            code.do(Op.STORE, place(position), number, ALIGNED, 4)
        code.jump(inner)
        code.start(inner)
        code.jump(merge)
        code.start(merge)
