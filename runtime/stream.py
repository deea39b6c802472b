"""The queue of a device: submissions numbered by one timeline semaphore, waits, and work put off until a number is reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from . import vk
from .errors import DeviceLost

POLL_NANOSECONDS = 100_000_000  # a wait returns to Python this often, so that Ctrl-C is heard
RECENT = 64


class Stream:
    """Submissions in order. Callers hold the device's lock around everything but `wait` and `reached`.

    Attributes:
        submitted: number of the last submission; submission n is finished once the semaphore has reached n.
    """

    def __init__(self, objects: vk.Objects, queue: Any, name: str) -> None:
        self._objects, self._queue, self._name = objects, queue, name
        kind = vk.struct("VkSemaphoreTypeCreateInfo", semaphoreType=vk.constant("SEMAPHORE_TYPE_TIMELINE"), initialValue=0)
        self._semaphore = objects.create("Semaphore", vk.struct("VkSemaphoreCreateInfo", pNext=kind))
        self._semaphores = vk.ffi.new("VkSemaphore[1]", [self._semaphore])
        self._value = vk.ffi.new("uint64_t[1]")
        self._found = vk.ffi.new("uint64_t[1]")
        self._timeline = vk.struct(
            "VkTimelineSemaphoreSubmitInfo", signalSemaphoreValueCount=1, pSignalSemaphoreValues=self._value
        )
        self.submitted = 0
        self._finished = 0
        self._lost = ""
        self._recent: deque[tuple[int, str]] = deque(maxlen=RECENT)
        self._put_off: deque[tuple[int, Callable[[], None]]] = deque()

    def batch(self, commands: Any) -> Any:
        """A VkSubmitInfo for a VkCommandBuffer[1], to be made once and submitted often."""
        return vk.struct(
            "VkSubmitInfo",
            pNext=self._timeline,
            commandBufferCount=1,
            pCommandBuffers=commands,
            signalSemaphoreCount=1,
            pSignalSemaphores=self._semaphores,
        )

    def submit(self, batch: Any, name: str) -> int:
        """Submit; returns the number to wait for. `name` is what an error will blame."""
        value = self.submitted + 1
        self._value[0] = value
        result = vk.lib.vkQueueSubmit(self._queue, 1, batch, vk.ffi.NULL)
        if result:
            self._fail(int(result), f"submitting {name}")
        self.submitted = value
        self._recent.append((value, name))
        return value

    def reached(self, value: int) -> bool:
        """Whether submission `value` is finished. Never blocks."""
        if value <= self._finished:
            return True
        result = vk.lib.vkGetSemaphoreCounterValue(self._objects.device, self._semaphore, self._found)
        if result:
            self._fail(int(result), "asking for progress")
        self._finished = max(self._finished, self._found[0])
        return value <= self._finished

    def wait(self, value: int) -> None:
        """Block until submission `value` is finished."""
        if self.reached(value):
            return
        values = vk.ffi.new("uint64_t[1]", [value])
        info = vk.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._semaphores, pValues=values)
        timeout = vk.constant("TIMEOUT")
        while (result := vk.lib.vkWaitSemaphores(self._objects.device, info, POLL_NANOSECONDS)) == timeout:
            pass
        if result:
            self._fail(int(result), "waiting")
        self._finished = max(self._finished, value)

    def wait_idle(self) -> None:
        self.wait(self.submitted)
        self.run_put_off()

    def put_off(self, action: Callable[[], None]) -> None:
        """Run `action` once everything submitted so far is finished. Safe to call from a finalizer, without the lock."""
        self._put_off.append((self.submitted, action))

    def run_put_off(self) -> None:
        """Run the actions whose time has come."""
        while self._put_off and self.reached(self._put_off[0][0]):
            self._put_off.popleft()[1]()

    def _fail(self, result: int, doing: str) -> None:
        name = vk.result_name(result)
        if name != "VK_ERROR_DEVICE_LOST" and not self._lost:
            vk.check(result, f"{doing} on {self._name}")
        if not self._lost:
            names = list(dict.fromkeys(name for value, name in self._recent if value > self._finished))
            self._lost = (
                f"{self._name} was lost while {doing}; in flight: {', '.join(names) or 'nothing'}. A kernel ran into the "
                "driver's time limit or touched memory outside its buffers. K3JIT_CHECK=1 finds an access out of bounds; "
                "a device that is lost stays lost until the process is restarted."
            )
        raise DeviceLost(self._lost)
