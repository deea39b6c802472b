"""Running a program: recorded once, replayed at every call with new addresses in a table.

A recorded command buffer fixes the address of its argument table, so each *instance* of a program has its own
command buffers and its own table; a call takes an instance that is not in flight.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lowering.program import Program, Ref
from . import vk
from .device import Buffer, Device
from .plan import ERROR_BYTES, Batch, Launch, Loop, Plan

if TYPE_CHECKING:
    from .profile import Timer

MAX_INSTANCES = 3
EMPTY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Recorded:
    """A batch as command buffers: `submit_info` is handed to the queue."""

    commands: Any
    submit_info: Any
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class RecordedLoop:
    flag: Ref
    body: tuple[Recorded | RecordedLoop, ...]


class Recorder:
    """Constants of recording for one device: barriers and the begin info."""

    def __init__(self) -> None:
        compute, transfer, host = (vk.constant(f"PIPELINE_STAGE_{name}_BIT") for name in ("COMPUTE_SHADER", "TRANSFER", "HOST"))
        read, write = vk.constant("ACCESS_SHADER_READ_BIT"), vk.constant("ACCESS_SHADER_WRITE_BIT")
        copied = vk.constant("ACCESS_TRANSFER_WRITE_BIT")
        self.compute_bind = vk.constant("PIPELINE_BIND_POINT_COMPUTE")
        self.stage = vk.constant("SHADER_STAGE_COMPUTE_BIT")
        self.begin = vk.struct("VkCommandBufferBeginInfo")
        start = vk.struct("VkMemoryBarrier", srcAccessMask=write | copied, dstAccessMask=read | write)
        between = vk.struct("VkMemoryBarrier", srcAccessMask=write, dstAccessMask=read | write)
        end_access = vk.constant("ACCESS_HOST_READ_BIT")
        end = vk.struct("VkMemoryBarrier", srcAccessMask=write, dstAccessMask=end_access)
        none = vk.ffi.NULL
        # Earlier submissions share the arena and may still run: order after them all.
        self.start = (compute | transfer, compute, 0, 1, start, 0, none, 0, none)
        self.between = (compute, compute, 0, 1, between, 0, none, 0, none)
        self.end = (compute, host, 0, 1, end, 0, none, 0, none)


class Instance:
    """Command buffers of a program with the argument table they read.

    Attributes:
        value: number of the last submission that used it.
        arena: the arena whose addresses are in the table.
    """

    def __init__(self, executable: Executable, timer: Timer | None = None) -> None:
        device, plan = executable.device, executable.plan
        self.value = 0
        self.arena: Buffer | None = None
        self.timer = timer
        self._commands: list[Any] = []
        self.table_buffer = device.alloc_table(max(8, plan.slots.nbytes * 2), f"{executable.name}: arguments")
        assert self.table_buffer.host is not None
        self.table = self.table_buffer.host[: 8 * len(plan.slots)].view(np.uint64)
        self.errors: np.ndarray | None = None
        self.error_address = 0
        if executable.checked:
            self._error_buffer = device.alloc_table(
                max(1, len(plan.launches)) * ERROR_BYTES, f"{executable.name}: error records"
            )
            assert self._error_buffer.host is not None
            self.errors = self._error_buffer.host.view(np.uint32).reshape(-1, ERROR_BYTES // 4)
            self.error_address = self._error_buffer.address
        self.nodes = tuple(self._record(executable, node) for node in plan.nodes)

    def _record(self, executable: Executable, node: Batch | Loop) -> Recorded | RecordedLoop:
        if isinstance(node, Loop):
            return RecordedLoop(node.flag, tuple(self._record(executable, inner) for inner in node.body))
        device, recorder, lib = executable.device, executable.recorder, vk.lib
        commands = device.objects.allocate_commands(device.command_pool)
        self._commands.append(commands)
        handle, layout, pipelines, stage = commands[0], device.pipelines.layout, executable.pipelines, recorder.stage
        bind, push_constants, dispatch, barrier = (
            lib.vkCmdBindPipeline,
            lib.vkCmdPushConstants,
            lib.vkCmdDispatch,
            lib.vkCmdPipelineBarrier,
        )
        launches = tuple(launch for launch in node.commands if launch is not None)
        push = vk.ffi.new("uint64_t[2]")
        table_address, bound, timer = self.table_buffer.address, -1, self.timer
        vk.check(lib.vkBeginCommandBuffer(handle, recorder.begin), "vkBeginCommandBuffer")
        barrier(handle, *recorder.start)
        if timer is not None:
            timer.begin(handle, launches[0].number, len(launches))
        for launch in node.commands:
            if launch is None:
                barrier(handle, *recorder.between)
                continue
            if launch.kernel != bound:
                bound = launch.kernel
                bind(handle, recorder.compute_bind, pipelines[bound].handle)
            push[0] = table_address + launch.row
            push[1] = executable.static_address(launch.segments) if launch.segments is not None else 0
            push_constants(handle, layout, stage, 0, 16, push)
            if timer is None:
                dispatch(handle, *launch.groups)
            else:
                timer.mark(handle, 2 * launch.number)
                dispatch(handle, *launch.groups)
                barrier(handle, *recorder.between)
                timer.mark(handle, 2 * launch.number + 1)
        barrier(handle, *recorder.end)
        vk.check(lib.vkEndCommandBuffer(handle), "vkEndCommandBuffer")
        return Recorded(commands, device.stream.batch(commands), launches)

    def release(self, device: Device) -> None:
        """Free the command buffers once the device is done with them."""
        for commands in self._commands:
            device.stream.put_off(_Free(device, commands))
        self._commands = []


class _Free:
    """Frees one command buffer (a closure over a loop variable would free the last one many times)."""

    def __init__(self, device: Device, commands: Any) -> None:
        self._device, self._commands = device, commands

    def __call__(self) -> None:
        self._device.objects.free_commands(self._device.command_pool, self._commands)


class Executable:
    """A program on a device.

    Attributes:
        dispatches: vkCmdDispatch recorded for one call (a loop body counts once).
        checked: kernels test their indices and report through error records.
    """

    def __init__(self, device: Device, program: Program) -> None:
        self.device, self.program, self.name = device, program, program.name
        self.checked = program.checked
        self._instances: list[Instance] = []
        self.plan = plan = Plan(program, device.caps.max_groups, self.checked)
        self.dispatches = len(plan.launches)
        self.recorder = Recorder()
        self.pipelines = device.pipelines.load([(k.name, code) for k, code in zip(program.kernels, program.spirv, strict=True)])
        buffers = program.buffers
        self._consts = {
            slot: device.upload(buffer.data or b"", f"{self.name}: constant")
            for slot, buffer in enumerate(buffers)
            if buffer.kind == "const"
        }
        self.bases = np.zeros(len(buffers) + 2, dtype=np.uint64)
        for slot, const in self._consts.items():
            self.bases[slot] = const.address
        temporaries = [slot for slot, buffer in enumerate(buffers) if buffer.kind == "temp"]
        self._temp_slots = np.array(temporaries, dtype=np.intp)
        self._temp_offsets = np.array([buffers[slot].offset for slot in temporaries], dtype=np.uint64)
        self._arena: Buffer | None = None

        for buffer in buffers:
            device.check_size(buffer.nbytes, f"a buffer of {self.name}")
        inputs = [(slot, buffer.index) for slot, buffer in enumerate(buffers) if buffer.kind == "input"]
        outputs = [slot for slot, buffer in enumerate(buffers) if buffer.kind == "output"]
        self._input_indices = [index for _, index in inputs]
        self._output_plan = [(slot, buffers[slot].nbytes, buffers[slot].alias) for slot in outputs]
        self._call_slots = np.array([slot for slot, _ in inputs] + outputs, dtype=np.intp)
        self._entries = np.flatnonzero(np.isin(plan.slots, self._call_slots))
        self._entry_slots = plan.slots[self._entries].astype(np.intp)
        self._entry_offsets = plan.offsets[self._entries]
        position = {slot: i for i, slot in enumerate(outputs)}
        self._results: list[tuple[bool, int]] = []  # (handed through, input index or position among the outputs)
        for output in program.outputs:
            buffer = buffers[output.buffer]
            if buffer.kind not in ("input", "output"):
                raise ValueError(f"{self.name}: a result can't live in a {buffer.kind} buffer")
            self._results.append((True, buffer.index) if buffer.kind == "input" else (False, position[output.buffer]))
        self._output_owner = f"{self.name}: result"

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():  # names of this module may be gone; the process leaves its objects to the driver
            return
        for instance in getattr(self, "_instances", ()):
            instance.release(self.device)

    def static_address(self, ref: Ref) -> int:
        """Address of a place that is the same at every call."""
        if self.program.buffers[ref.buffer].kind != "const":
            raise ValueError(f"{self.name}: the segments of a packed dispatch must be a constant")
        return int(self.bases[ref.buffer]) + ref.offset

    # -- calls -------------------------------------------------------------------------------------------------
    def run(self, inputs: Sequence[Buffer], donate: Collection[int] = EMPTY) -> list[Buffer]:
        """Start one call and return the result buffers, in the order of `Program.outputs`, without waiting for them.

        Args:
            inputs: one buffer a flat argument.
            donate: arguments whose memory a result may take over; the caller must not use them again.

        A program with host loops returns when its last round is submitted. In checked mode the call waits and raises
        RuntimeError where a kernel left its buffers.
        """
        device = self.device
        device.ready()
        with device.lock:
            instance = self._idle_instance()
            results = self._start(instance, inputs, donate)
        if instance.errors is not None:
            device.stream.wait(instance.value)
            self._raise_errors(instance.errors)
        return results

    def _start(self, instance: Instance, inputs: Sequence[Buffer], donate: Collection[int]) -> list[Buffer]:
        device = self.device
        if len(inputs) != len(self.program.inputs):
            raise ValueError(f"{self.name} takes {len(self.program.inputs)} buffers, got {len(inputs)}")
        outputs: list[Buffer] = []
        pool, owner = device.pool, self._output_owner
        device.stream.run_put_off()
        for _, nbytes, alias in self._output_plan:
            if alias is not None and alias in donate:
                donated = inputs[alias]
                if not donated.pinned and donated.nbytes == nbytes:
                    outputs.append(donated)
                    continue
            outputs.append(Buffer(device, pool, pool.take(nbytes, owner), nbytes))
        addresses = array("Q", [inputs[index].address for index in self._input_indices])
        addresses.extend([buffer.address for buffer in outputs])
        self.bases[self._call_slots] = np.frombuffer(addresses, dtype=np.uint64) if addresses else 0
        self._fill(instance)
        try:
            self._submit(instance, instance.nodes, inputs, outputs)
        finally:
            instance.value = value = device.stream.submitted
        for buffer in outputs:
            buffer.last_write = value
        results, seen = [], set[int]()
        for through, index in self._results:
            result = inputs[index] if through else outputs[index]
            # Two owners from here on, so neither may be overwritten in place.
            if (through and index not in donate) or id(result) in seen:
                result.pinned = True
            seen.add(id(result))
            results.append(result)
        return results

    def _fill(self, instance: Instance) -> None:
        """Write the addresses of this call into the instance's table."""
        if self.program.arena_bytes:
            arena = self.device.arena(self.program.arena_bytes)
            if arena is not self._arena:
                self._arena = arena
                self.bases[self._temp_slots] = self._temp_offsets + np.uint64(arena.address)
        if instance.arena is not self._arena or instance.value == 0:
            self.bases[self.plan.error_slot] = instance.error_address
            instance.table[:] = self.bases[self.plan.slots] + self.plan.offsets
            instance.arena = self._arena
        else:
            instance.table[self._entries] = self.bases[self._entry_slots] + self._entry_offsets
        if instance.errors is not None:
            instance.errors[:] = 0

    def _submit(
        self, instance: Instance, nodes: Sequence[Recorded | RecordedLoop], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> None:
        stream = self.device.stream
        for node in nodes:
            if isinstance(node, Recorded):
                value = stream.submit(node.submit_info, self.name)
                if instance.timer is not None:
                    stream.wait(value)
                    instance.timer.collect(node.launches)
            else:
                while self._flag(node.flag, inputs, outputs):
                    self._submit(instance, node.body, inputs, outputs)

    def _flag(self, flag: Ref, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> bool:
        """Value of a bool element, after everything submitted."""
        device, buffer = self.device, self.program.buffers[flag.buffer]
        device.stream.wait(device.stream.submitted)
        width = 1 if 8 in device.caps.storage else 4
        if buffer.kind == "temp":
            assert self._arena is not None
            place, offset = self._arena, buffer.offset + flag.offset
        elif buffer.kind == "output":
            position = next(i for i, (slot, _, _) in enumerate(self._output_plan) if slot == flag.buffer)
            place, offset = outputs[position], flag.offset
        else:
            place, offset = (inputs[buffer.index] if buffer.kind == "input" else self._consts[flag.buffer]), flag.offset
        return bool(device.download(place, width, offset).any())

    def reserve(self) -> None:
        """Record every instance now, not when calls first overlap: from here on no call makes a Vulkan object."""
        with self.device.lock:
            while len(self._instances) < MAX_INSTANCES:
                self._instances.insert(0, Instance(self))

    def _idle_instance(self) -> Instance:
        """An instance whose last call is finished; the list is kept in order of use."""
        instances, stream = self._instances, self.device.stream
        if not instances or (len(instances) < MAX_INSTANCES and not stream.reached(instances[0].value)):
            instance = Instance(self)
        else:
            instance = instances.pop(0)
            try:
                stream.wait(instance.value)
            except BaseException:
                instances.insert(0, instance)
                raise
        instances.append(instance)
        return instance

    def _raise_errors(self, errors: np.ndarray) -> None:
        bad = np.flatnonzero(errors[:, 0])
        if not len(bad):
            return
        count, number, index, tag = (int(word) for word in errors[bad[0], :4])
        kernel = self.program.kernels[self.plan.launches[bad[0]]]
        known = number < len(kernel.params)
        what = f"{kernel.params[number].name!r} ({kernel.params[number].size} elements)" if known else f"number {number}"
        where = f" from {', '.join(kernel.source)}" if kernel.source else ""
        raise RuntimeError(
            f"{self.name}: kernel {kernel.name}{where} left parameter {what} at index {index - (index >> 31 << 32)} "
            f"(instruction {tag}, {count} invocations, {len(bad)} dispatches affected). This is a bug of the compiler."
        )

    def profile(self, inputs: Sequence[Buffer]) -> list[tuple[str, float]]:
        """Run one call with each dispatch timed on its own; (kernel name, seconds) in order of execution.

        The dispatches don't overlap here, so the sum may exceed the time of a plain call.
        """
        from .profile import profile

        return profile(self, inputs)
