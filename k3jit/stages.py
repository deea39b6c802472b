"""Looking at a function before it runs: `Lowered` (no device needed), its kernels, and `Compiled`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from . import _compile, _device, _dump, _jax_compat, primitive
from .array import Array
from .errors import NoDevice

if TYPE_CHECKING:
    from .api import Entry, Jitted
    from .array import Signature

STAGES = ("jaxpr", "graph", "groups", "tile", "spirv")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a program.

    Attributes:
        name: what profiles call it.
        spirv: its code.
        workgroups: of each dispatch of it, (x, y, z).
        reads, writes: bytes that one call of the program reads and writes through it.
        source: the user's lines it computes, "file.py:line".
        operations: names of the primitives inside.
        local_size: lanes of a workgroup.
    """

    name: str
    spirv: bytes
    workgroups: tuple[tuple[int, int, int], ...]
    reads: int
    writes: int
    source: tuple[str, ...]
    operations: tuple[str, ...]
    local_size: int

    def as_text(self) -> str:
        """SPIR-V assembly."""
        return disassemble(self.spirv)

    def __repr__(self) -> str:
        return f"Kernel({self.name}, {len(self.workgroups)} dispatches, reads {self.reads:,} B, writes {self.writes:,} B)"


class Lowered:
    """A function lowered for argument types, made by `f.lower(...)`.

    Attributes:
        jaxpr: what was traced, a ClosedJaxpr; arrays the function closes over are its first inputs.
        program: the plan: kernels, buffers, steps.
    """

    def __init__(self, function: Jitted, entry: Entry, tree: Any, signature: list[Signature]) -> None:
        self._function, self._entry, self._tree, self._signature = function, entry, tree, signature
        self.jaxpr = entry.closed
        try:
            self._device = primitive.choose_device([], function._options.device)
        except NoDevice:
            self._device = None
        if self._device is None:
            from .runtime.caps import NULL_CAPS

            self._caps = NULL_CAPS
        else:
            self._caps = self._device.caps
        self.program = _compile.lower(entry.closed, self._caps, function._name, entry.donated, use_cache=False)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, in the order of their first dispatch."""
        return kernels_of(self.program)

    @property
    def in_avals(self) -> list[Any]:
        return [s.aval for s in self._signature]

    @property
    def in_tree(self) -> Any:
        return self._tree

    @property
    def out_tree(self) -> Any:
        return self._entry.tree

    @property
    def out_info(self) -> Any:
        """Types of the result."""
        return self._entry.tree.unflatten([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.jaxpr.out_avals])

    def as_text(self, stage: str = "tile") -> str:
        """A stage as text.

        Args:
            stage: "jaxpr", "graph", "groups", "tile" or "spirv".
        """
        return stage_text(self.program, self.jaxpr, stage)

    def explain(self) -> str:
        """Each fusion decision, in words."""
        return "\n".join(self.program.decisions)

    def cost_analysis(self) -> dict[str, float]:
        return cost_of(self.program)

    def compile(self) -> Compiled:
        """Make it ready to run.

        Raises:
            NoDevice: there is no device to run it on.
        """
        device = self._device if self._device is not None else _device.default_device()
        program = self.program if device.caps == self._caps else None
        loaded = _compile.loaded(self._entry.closed, device, self._function._name, self._entry.donated, program)
        return Compiled(self._function, self._entry, loaded, self._tree, self._signature)

    def __repr__(self) -> str:
        return f"<Lowered {self.program.name}: {len(self.program.kernels)} kernels>"

    def _repr_html_(self) -> str:
        return table_html(self.program)


class Compiled:
    """A function compiled for argument types: call it with arguments of exactly these."""

    def __init__(self, function: Jitted, entry: Entry, loaded: _compile.Loaded, tree: Any, signature: list[Signature]) -> None:
        self._function, self._entry, self._loaded, self._tree, self._signature = function, entry, loaded, tree, signature
        self._hidden = [_compile.constant(c, loaded.device, function._name) for c in entry.consts]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run.

        Raises:
            TypeError: structure, shapes or dtypes differ from those it was compiled for; each difference is named.
        """
        dynamic, named = args, kwargs
        if self._function._has_static:
            dynamic, named, _ = self._function._split(args, kwargs)
        leaves, tree = jax.tree.flatten((dynamic, named))
        if tree != self._tree:
            raise TypeError(f"{self._function._name} was compiled for arguments of structure {self._tree}, called with {tree}")
        if not _jax_compat.trace_state_clean():
            raise TypeError(
                f"the compiled form of {self._function._name} cannot be transformed or traced; use the function itself"
            )
        from .api import _signature

        wrong = []
        for number, (leaf, wanted) in enumerate(zip(leaves, self._signature, strict=True)):
            given = _signature(leaf)
            if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
                wrong.append(f"flat argument {number} is {given}, compiled for {wanted}")
        if wrong:
            raise TypeError(
                f"{self._function._name}: {'; '.join(wrong)}. "
                "Lower and compile it again for these, or call the function itself."
            )
        return self._entry.tree.unflatten(self._loaded.run([*self._hidden, *leaves]))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return kernels_of(self._loaded.program)

    @property
    def dispatches(self) -> int:
        """vkCmdDispatch calls of one run; a loop's body counts each time it is recorded."""
        return self._loaded.executable.dispatches

    @property
    def in_tree(self) -> Any:
        return self._tree

    @property
    def out_tree(self) -> Any:
        return self._entry.tree

    def as_text(self, stage: str = "tile") -> str:
        """A stage as text; lowered once more where the program came from the plan cache, which keeps none."""
        program, closed = self._loaded.program, self._entry.closed
        if stage in ("graph", "groups", "tile") and not program.texts:
            program = _compile.lower(closed, self._loaded.device.caps, self._loaded.name, self._entry.donated, use_cache=False)
        return stage_text(program, closed, stage)

    def cost_analysis(self) -> dict[str, float]:
        """`flops`, `bytes accessed`, `kernels` and `dispatches` of one call."""
        return cost_of(self._loaded.program)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, results and temporaries; the peak; and what temporaries would take without sharing."""
        return memory_of(self._loaded.program)

    def profile(self, *args: Any, **kwargs: Any) -> list[tuple[str, float]]:
        """Run once and time every kernel: (name, seconds) in dispatch order."""
        leaves = jax.tree.leaves((args, kwargs))
        return profile_loaded(self._loaded, [*self._hidden, *leaves])

    def __repr__(self) -> str:
        return f"<Compiled {self._function._name}: {self.dispatches} dispatches on {self._loaded.device.name}>"

    def _repr_html_(self) -> str:
        return table_html(self._loaded.program)


# -- reading a program ---------------------------------------------------------------------------------------------------
def walk(steps: Sequence[Any], visit: Callable[[Any], None]) -> None:
    """Call `visit` with every dispatch, in order."""
    for step in steps:
        if hasattr(step, "body"):
            walk(step.body, visit)
        elif hasattr(step, "groups"):
            visit(step)


def kernels_of(program: Any) -> tuple[Kernel, ...]:
    """The kernels of a program with what its dispatches touch."""
    groups: dict[int, list[tuple[int, int, int]]] = {}
    reads: dict[int, int] = {}
    writes: dict[int, int] = {}

    def visit(step: Any) -> None:
        groups.setdefault(step.kernel, []).append(tuple(step.groups))
        reads[step.kernel] = reads.get(step.kernel, 0) + sum(r.nbytes for r in step.reads)
        writes[step.kernel] = writes.get(step.kernel, 0) + sum(r.nbytes for r in step.writes)

    walk(program.steps, visit)
    order = [*groups, *(i for i in range(len(program.kernels)) if i not in groups)]
    return tuple(
        Kernel(
            program.kernels[i].name,
            program.spirv[i],
            tuple(groups.get(i, ())),
            reads.get(i, 0),
            writes.get(i, 0),
            program.kernels[i].source,
            program.kernels[i].operations,
            program.kernels[i].local_size,
        )
        for i in order
    )


def cost_of(program: Any) -> dict[str, float]:
    total = sum(k.reads + k.writes for k in kernels_of(program))
    return {
        "flops": program.flops,
        "bytes accessed": total,
        "kernels": len(program.kernels),
        "dispatches": _dump.dispatches(program.steps),
    }


def memory_of(program: Any) -> dict[str, int]:
    sizes = {kind: sum(b.nbytes for b in program.buffers if b.kind == kind) for kind in ("input", "output", "const")}
    reused = sum(b.nbytes for b in program.buffers if b.kind == "output" and b.alias is not None)
    return {
        "argument_size_in_bytes": sizes["input"],
        "output_size_in_bytes": sizes["output"],
        "alias_size_in_bytes": reused,
        "constant_size_in_bytes": sizes["const"],
        "temp_size_in_bytes": program.arena_bytes,
        "peak_size_in_bytes": sizes["input"] + sizes["output"] - reused + sizes["const"] + program.arena_bytes,
        "unplanned_size_in_bytes": program.unplanned_bytes,
    }


def stage_text(program: Any, closed: Any, stage: str) -> str:
    if stage == "jaxpr":
        return str(closed)
    if stage == "spirv":
        return "\n".join(disassemble(code) for code in program.spirv)
    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
    if stage == "tile" and all(kernel.body.values for kernel in program.kernels):
        from .lowering.tile import to_text

        return "\n\n".join(map(to_text, program.kernels))
    if stage not in program.texts:
        raise ValueError(
            f"the {stage} of {program.name} was not kept: it came from the plan cache. Lower it again with .lower(...)"
        )
    return program.texts[stage]


def disassemble(code: bytes) -> str:
    """SPIR-V assembly of a module."""
    from .lowering import spirv_tools

    return spirv_tools.disassemble(code)


def profile_loaded(loaded: _compile.Loaded, leaves: Sequence[Any]) -> list[tuple[str, float]]:
    buffers = [leaf._live_buffer() if type(leaf) is Array else loaded._upload(leaf) for leaf in leaves]
    return list(loaded.executable.profile(buffers))


def table_html(program: Any) -> str:
    from html import escape

    rows = "".join(
        f"<tr><td>{escape(k.name)}</td><td>{len(k.workgroups)}</td><td>{k.reads:,}</td><td>{k.writes:,}</td>"
        f"<td>{escape(' '.join(k.operations))}</td><td>{escape(', '.join(k.source))}</td></tr>"
        for k in kernels_of(program)
    )
    head = "".join(f"<th>{t}</th>" for t in ("kernel", "dispatches", "bytes read", "bytes written", "operations", "source"))
    title = f"<p><b>{escape(program.name)}</b>, {_dump.dispatches(program.steps)} dispatches</p>"
    return f"{title}<table><tr>{head}</tr>{rows}</table>"
