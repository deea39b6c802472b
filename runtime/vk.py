"""The only module that imports `vulkan`: library loading, structs, result codes, object counts, the instance.

Nothing here uses the package's Python wrappers; structs are built by `struct`, functions called through `lib`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .errors import DeviceLost, NoDevice, OutOfDeviceMemory

ffi: Any = None
lib: Any = None
_names: Any = None
_load_failure = ""
try:
    import vulkan

    _names, ffi, lib = vulkan, vulkan.ffi, vulkan.lib
except (OSError, ImportError) as failure:
    _load_failure = str(failure)

LAYER = "VK_LAYER_KHRONOS_validation"
VALIDATION: dict[str, tuple[str, ...]] = {
    "core": (),
    "sync": ("SYNCHRONIZATION_VALIDATION",),
    "gpu": ("GPU_ASSISTED", "GPU_ASSISTED_RESERVE_BINDING_SLOT"),
}
"""Kinds of validation, and the features of the layer that each turns on; core is always on."""
_VALIDATION_SETS = {"1": ("core", "sync"), "all": tuple(VALIDATION)}
_NOTE = ("WARNING-GPU-Assisted-Validation", "Internal Warning")
INSTALL_HINT = (
    "Install a Vulkan driver: on Debian or Ubuntu `apt-get install libvulkan1 mesa-vulkan-drivers` (AMD, Intel, and "
    "lavapipe for the CPU), on Fedora `dnf install vulkan-loader mesa-vulkan-drivers`, for NVIDIA the vendor's driver. "
    "Or set K3JIT_DEVICE=null to lower and interpret without a device."
)
_TYPE_NAMES = {
    "PhysicalDeviceVulkan11": "PHYSICAL_DEVICE_VULKAN_1_1_",
    "PhysicalDeviceVulkan12": "PHYSICAL_DEVICE_VULKAN_1_2_",
    "PhysicalDeviceVulkan13": "PHYSICAL_DEVICE_VULKAN_1_3_",
}
_alive: Any = weakref.WeakKeyDictionary()


# The package leaves out some names that moved from extensions into the core.
_PROMOTED = {
    "BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT": 0x20000,
    "MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT": 0x2,
    "PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT": 0x2,
}


def constant(name: str) -> int:
    """Value of the Vulkan constant `VK_<name>`."""
    return _PROMOTED[name] if name in _PROMOTED else getattr(_names, "VK_" + name)


def _structure_type(name: str) -> int:
    body = name[2:]
    for prefix, spelled in _TYPE_NAMES.items():
        if body.startswith(prefix):
            return constant("STRUCTURE_TYPE_" + spelled + body[len(prefix) :].upper())
    vendor = re.search(r"(EXT|KHR)$", body)
    stem = body[: vendor.start()] if vendor else body
    words = re.findall(r"[A-Z][a-z]*|\d+", stem)
    snake = re.sub(r"([A-Z]+)_?(\d+)", r"\1_\2", "_".join(words).upper())
    return constant("STRUCTURE_TYPE_" + snake + (f"_{vendor.group()}" if vendor else ""))


_structure_types: dict[str, int | None] = {}


def struct(name: str, **fields: Any) -> Any:
    """A new `name*` with its sType set; `fields` may hold other structs, which live as long as it does.

    The package's own constructors drop nested objects, so a name or an array inside them dangles.
    """
    if name not in _structure_types:
        has_type = any(field == "sType" for field, _ in ffi.typeof(name).fields)
        _structure_types[name] = _structure_type(name) if has_type else None
    structure_type = _structure_types[name]
    result = ffi.new(name + "*", fields if structure_type is None else {"sType": structure_type, **fields})
    _alive[result] = tuple(fields.values())
    return result


def strings(texts: Iterable[str]) -> Any:
    """A `char*[]` that owns its texts."""
    chars = [ffi.new("char[]", text.encode()) for text in texts]
    result = ffi.new("char*[]", chars)
    _alive[result] = chars
    return result


def result_name(result: int) -> str:
    """VK_ERROR_... name of a result code."""
    return ffi.typeof("VkResult").elements.get(int(result), str(int(result)))


def check(result: int, what: str) -> None:
    """Raise the error that a failed call stands for; `what` says which call, and for whom."""
    if result >= 0:
        return
    name = result_name(result)
    if name in ("VK_ERROR_OUT_OF_DEVICE_MEMORY", "VK_ERROR_OUT_OF_HOST_MEMORY", "VK_ERROR_TOO_MANY_OBJECTS"):
        raise OutOfDeviceMemory(f"{what}: {name}")
    if name == "VK_ERROR_DEVICE_LOST":
        raise DeviceLost(
            f"{what}: the device was lost. A kernel ran into the driver's time limit or faulted; see K3JIT_CHECK=1."
        )
    raise RuntimeError(f"{what} failed with {name}")


class Objects:
    """Creates and destroys the Vulkan objects of one device, and counts those alive by kind."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, kind: str, change: int) -> None:
        with self._lock:
            self.counts[kind] += change

    def create(self, kind: str, info: Any) -> Any:
        """vkCreate<kind>(device, info)."""
        out = ffi.new(f"Vk{kind}*")
        check(getattr(lib, f"vkCreate{kind}")(self.device, info, ffi.NULL, out), f"vkCreate{kind}")
        self.count(kind, 1)
        return out[0]

    def close(self) -> None:
        """Destroy the device; whatever is still alive goes with it, and nothing more can be created."""
        device, self.device = self.device, None
        lib.vkDestroyDevice(device, ffi.NULL)

    def destroy(self, kind: str, handle: Any) -> None:
        """vkDestroy<kind>(device, handle)."""
        if self.device is None:
            return
        getattr(lib, f"vkDestroy{kind}")(self.device, handle, ffi.NULL)
        self.count(kind, -1)

    def allocate_memory(self, info: Any) -> Any:
        out = ffi.new("VkDeviceMemory*")
        check(lib.vkAllocateMemory(self.device, info, ffi.NULL, out), "vkAllocateMemory")
        self.count("DeviceMemory", 1)
        return out[0]

    def free_memory(self, memory: Any) -> None:
        if self.device is None:
            return
        lib.vkFreeMemory(self.device, memory, ffi.NULL)
        self.count("DeviceMemory", -1)

    def allocate_commands(self, pool: Any) -> Any:
        """One primary command buffer, as a VkCommandBuffer[1] ready for a submit."""
        out = ffi.new("VkCommandBuffer[1]")
        info = struct("VkCommandBufferAllocateInfo", commandPool=pool, commandBufferCount=1)
        check(lib.vkAllocateCommandBuffers(self.device, info, out), "vkAllocateCommandBuffers")
        self.count("CommandBuffer", 1)
        return out

    def free_commands(self, pool: Any, commands: Any) -> None:
        if self.device is None:
            return
        lib.vkFreeCommandBuffers(self.device, pool, 1, commands)
        self.count("CommandBuffer", -1)


class Instance:
    """The VkInstance of the process, its physical devices, and what the validation layer says.

    Attributes:
        messages: warnings and errors about what this program does.
        notes: what GPU-assisted validation says about itself, such as device features that it turns on for its own use.
        ended: set when the process ends, to stop listening.

    Raises NoDevice where there is no loader or no driver, RuntimeError where K3JIT_VALIDATE names a layer that is missing.
    """

    def __init__(self, validate: str) -> None:
        if lib is None:
            raise NoDevice(f"The Vulkan loader could not be loaded ({_load_failure}). {INSTALL_HINT}")
        self.messages: list[str] = []
        self.notes: list[str] = []
        self.ended = False
        self.validate = validate
        layers, extensions, next_info = self._validation(validate) if validate else ((), (), ffi.NULL)
        application = struct("VkApplicationInfo", pApplicationName=ffi.NULL, apiVersion=self._api_version())
        info = struct(
            "VkInstanceCreateInfo",
            pNext=next_info,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=strings(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=strings(extensions),
        )
        out = ffi.new("VkInstance*")
        result = lib.vkCreateInstance(info, ffi.NULL, out)
        if result < 0:
            raise NoDevice(f"No Vulkan driver can be used (vkCreateInstance: {result_name(result)}). {INSTALL_HINT}")
        self.handle = out[0]
        self._messenger: Any = None
        if validate:
            self._listen()

    @staticmethod
    def _api_version() -> int:
        found = ffi.new("uint32_t*")
        check(lib.vkEnumerateInstanceVersion(found), "vkEnumerateInstanceVersion")
        # A device may offer less: what is used of 1.3 is asked of each device.
        return min(found[0], (1 << 22) | (3 << 12))

    def physical_devices(self) -> list[Any]:
        handles = enumerate_all("VkPhysicalDevice", lib.vkEnumeratePhysicalDevices, self.handle)
        return handles

    # -- validation --------------------------------------------------------------------------------------------
    def _validation(self, setting: str) -> tuple[Sequence[str], Sequence[str], Any]:
        kinds = [kind for word in setting.split(",") for kind in _VALIDATION_SETS.get(word.strip(), (word.strip(),))]
        if not set(kinds) <= set(VALIDATION):
            raise ValueError(
                f"K3JIT_VALIDATE={setting!r}: must be 1, all, or some of {', '.join(VALIDATION)} with commas between"
            )
        present = [
            ffi.string(layer.layerName).decode()
            for layer in enumerate_all("VkLayerProperties", lib.vkEnumerateInstanceLayerProperties)
        ]
        if LAYER not in present:
            raise RuntimeError(
                f"K3JIT_VALIDATE={setting}: {LAYER} is not installed. On Debian: apt-get install vulkan-validationlayers"
            )
        wanted = [feature for kind, features in VALIDATION.items() if kind in kinds for feature in features]
        enabled = ffi.new(
            "VkValidationFeatureEnableEXT[]", [constant(f"VALIDATION_FEATURE_ENABLE_{name}_EXT") for name in wanted]
        )
        features = struct(
            "VkValidationFeaturesEXT", enabledValidationFeatureCount=len(wanted), pEnabledValidationFeatures=enabled
        )
        return (LAYER,), ("VK_EXT_debug_utils", "VK_EXT_validation_features"), features

    def _listen(self) -> None:
        messages, notes = self.messages, self.notes

        def collect(_severity: int, _kind: int, data: Any, _user: Any) -> int:
            identity = ffi.string(data.pMessageIdName).decode() if data.pMessageIdName else ""
            text = ffi.string(data.pMessage).decode(errors="replace")
            if self.ended:
                pass  # the process leaves its objects to the driver
            elif identity == _NOTE[0] and _NOTE[1] in text:
                notes.append(text)
            else:
                messages.append(f"{identity}: {text}")
                print(f"k3jit: validation layer: {messages[-1]}", file=sys.stderr)
            return 0

        # Held by self: cffi frees the trampoline with its handle.
        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", collect)
        info = struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=constant("DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT")
            | constant("DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT"),
            messageType=constant("DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT")
            | constant("DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT")
            | constant("DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT"),
            pfnUserCallback=self._callback,
        )
        name = b"vkCreateDebugUtilsMessengerEXT"
        create = ffi.cast("PFN_vkCreateDebugUtilsMessengerEXT", lib.vkGetInstanceProcAddr(self.handle, name))
        out = ffi.new("VkDebugUtilsMessengerEXT*")
        check(create(self.handle, info, ffi.NULL, out), "vkCreateDebugUtilsMessengerEXT")
        self._messenger = out[0]


def enumerate_all(item: str, function: Any, *arguments: Any) -> list[Any]:
    """All items of a vkEnumerate... or vkGet... call that takes a count and an array."""
    count = ffi.new("uint32_t*")
    result = function(*arguments, count, ffi.NULL)
    if result is not None:
        check(result, f"enumerating {item}")
    out = ffi.new(f"{item}[]", count[0])
    result = function(*arguments, count, out)
    if result is not None:
        check(result, f"enumerating {item}")
    kept = [out[i] for i in range(count[0])]
    for entry in kept:
        if ffi.typeof(entry).kind == "struct":
            _alive[entry] = out
    return kept


_instance: Instance | None = None
_instance_lock = threading.Lock()
_forked = False


def instance() -> Instance:
    """The instance of this process, created at the first call."""
    global _instance
    with _instance_lock:
        if _instance is None:
            _instance = Instance(os.environ.get("K3JIT_VALIDATE", ""))
        return _instance


def opened() -> Instance | None:
    """The instance of this process if there is one."""
    return _instance


def forked() -> bool:
    """Whether this process was forked from one that had already opened Vulkan."""
    return _forked


def _after_fork() -> None:
    global _forked, _instance_lock
    _instance_lock = threading.Lock()
    _forked = _instance is not None


os.register_at_fork(after_in_child=_after_fork)
