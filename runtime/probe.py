"""What a physical device can do: the floor it must meet, its DeviceCaps, and the features to switch on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import vk
from .caps import DeviceCaps

KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
I32_MAX = (1 << 31) - 1

# feature -> the struct that holds it. What lies outside the floor is switched on where it is present.
FLOOR = {"bufferDeviceAddress": "12", "timelineSemaphore": "12", "vulkanMemoryModel": "12"}
OPTIONAL = {
    "shaderInt64": "",
    "shaderFloat64": "",
    "shaderInt16": "",
    # The validation layer's GPU-assisted checks ask for these two.
    "fragmentStoresAndAtomics": "",
    "vertexPipelineStoresAndAtomics": "",
    "storageBuffer16BitAccess": "11",
    "storageBuffer8BitAccess": "12",
    "shaderFloat16": "12",
    "shaderInt8": "12",
    "scalarBlockLayout": "12",
    "vulkanMemoryModelDeviceScope": "12",
    "subgroupBroadcastDynamicId": "12",
    "shaderSubgroupExtendedTypes": "12",
    "subgroupSizeControl": "13",
    "computeFullSubgroups": "13",
    "maintenance4": "13",
}
CONSEQUENCES = {
    "storageBuffer8BitAccess": "int8, uint8 and bool take four bytes an element",
    "storageBuffer16BitAccess": "float16, bfloat16, int16 and uint16 take four bytes an element",
    "shaderInt64": "no 64-bit integers, and no float64",
    "shaderFloat64": "no float64",
    "shaderInt8": "8-bit integers are computed in 32 bits",
    "shaderInt16": "16-bit integers are computed in 32 bits",
    "shaderFloat16": "float16 is computed in float32",
    "subgroupSizeControl": "the subgroup size is the driver's choice",
}


@dataclass(frozen=True)
class Probe:
    """Facts about one physical device.

    Attributes:
        floor: reasons why it can't be used at all (empty if it can).
        features: names of the features to switch on.
        pipeline_key: names driver and device: pipelines compiled by one are of no use to another.
        required_subgroup: lanes to ask for at pipeline creation, 0 where the driver's number is fixed anyway.
        timestamp_period: nanoseconds of a timestamp tick, 0 where the queue has no timestamps.
    """

    caps: DeviceCaps
    driver: str
    memory: int
    floor: tuple[str, ...]
    missing: tuple[str, ...]
    features: frozenset[str]
    queue_family: int
    required_subgroup: int
    full_subgroups: bool
    pipeline_key: str
    timestamp_period: float
    timestamp_bits: int


def feature_structs(names: frozenset[str], api_minor: int) -> Any:
    """A VkPhysicalDeviceFeatures2 chain with exactly `names` switched on."""
    groups: dict[str, dict[str, int]] = {"": {}, "11": {}, "12": {}, "13": {}}
    for name in names:
        groups[(FLOOR | OPTIONAL)[name]][name] = 1
    chain = vk.ffi.NULL
    for version in ("13", "12", "11"):
        if int(version[1]) <= api_minor:
            chain = vk.struct(f"VkPhysicalDeviceVulkan{version}Features", pNext=chain, **groups[version])
    return vk.struct("VkPhysicalDeviceFeatures2", pNext=chain, features=groups[""])


def probe(physical: Any) -> Probe:
    """Read everything about `physical` that anything here depends on."""
    plain = vk.ffi.new("VkPhysicalDeviceProperties*")
    vk.lib.vkGetPhysicalDeviceProperties(physical, plain)
    api_minor = (plain.apiVersion >> 12) & 0x3FF if plain.apiVersion >> 22 & 0x7F == 1 else 3
    name, kind = vk.ffi.string(plain.deviceName).decode(), KINDS.get(int(plain.deviceType), "cpu")
    memory_properties = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(physical, memory_properties)
    heaps = [memory_properties.memoryHeaps[i] for i in range(memory_properties.memoryHeapCount)]
    memory = max((heap.size for heap in heaps if heap.flags & vk.constant("MEMORY_HEAP_DEVICE_LOCAL_BIT")), default=0)
    if api_minor < 2:
        floor: tuple[str, ...] = (f"Vulkan 1.{api_minor}: 1.2 is needed",)
        caps = DeviceCaps(name=name, kind=kind)
        return Probe(caps, "", memory, floor, floor, frozenset(), 0, 0, False, "", 0.0, 0)

    props13 = vk.struct("VkPhysicalDeviceVulkan13Properties") if api_minor >= 3 else None
    props12 = vk.struct("VkPhysicalDeviceVulkan12Properties", pNext=props13 or vk.ffi.NULL)
    props11 = vk.struct("VkPhysicalDeviceVulkan11Properties", pNext=props12)
    properties = vk.struct("VkPhysicalDeviceProperties2", pNext=props11)
    vk.lib.vkGetPhysicalDeviceProperties2(physical, properties)
    limits = properties.properties.limits

    present = _present_features(physical, api_minor)
    floor = tuple(f"{feature}: nothing runs without it" for feature in FLOOR if feature not in present)
    family, timestamp_bits = _compute_queue(physical)
    if family < 0:
        floor += ("a queue for compute: nothing runs without it",)

    compute, subgroup, required = vk.constant("SHADER_STAGE_COMPUTE_BIT"), props11.subgroupSize, 0
    max_local = min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0])
    # Kernels are written for a fixed number of lanes: where the driver may vary it, ask for the size it reports.
    varies = props13 and props13.minSubgroupSize < props13.maxSubgroupSize
    if props13 and varies and "subgroupSizeControl" in present and props13.requiredSubgroupSizeStages & compute:
        required = subgroup
        max_local = min(max_local, subgroup * props13.maxComputeWorkgroupSubgroups)
    operations = sum(vk.constant(f"SUBGROUP_FEATURE_{part}_BIT") for part in ("BASIC", "ARITHMETIC", "BALLOT", "SHUFFLE"))
    in_compute = bool(props11.subgroupSupportedStages & compute)
    subgroup_ops = in_compute and props11.subgroupSupportedOperations & operations == operations
    max_buffer = props11.maxMemoryAllocationSize
    if props13 and "maintenance4" in present:
        max_buffer = min(max_buffer, props13.maxBufferSize)
    caps = DeviceCaps(
        name=name,
        kind=kind,
        subgroup_size=subgroup,
        subgroup_ops=subgroup_ops,
        max_local_size=max_local,
        shared_bytes=limits.maxComputeSharedMemorySize,
        max_groups=tuple(min(limits.maxComputeWorkGroupCount[i], I32_MAX) for i in range(3)),  # type: ignore[arg-type]
        storage=tuple(width for width in (8, 16) if f"storageBuffer{width}BitAccess" in present),
        int64="shaderInt64" in present,
        float64="shaderFloat64" in present,
        float16="shaderFloat16" in present,
        int8="shaderInt8" in present,
        int16="shaderInt16" in present,
        float_controls=bool(props12.shaderSignedZeroInfNanPreserveFloat32),
        float_controls64=bool(props12.shaderSignedZeroInfNanPreserveFloat64),
        max_buffer_bytes=max_buffer,
    )
    missing = floor + tuple(f"{feature}: {effect}" for feature, effect in CONSEQUENCES.items() if feature not in present)
    if not subgroup_ops:
        missing += ("subgroup arithmetic and shuffles: reductions go through shared memory",)
    if not caps.float_controls:
        missing += ("shaderSignedZeroInfNanPreserveFloat32: the driver may assume that NaN and infinity never occur",)
    if caps.float64 and not caps.float_controls64:
        missing += ("shaderSignedZeroInfNanPreserveFloat64: the same of float64",)
    driver = f"{vk.ffi.string(props12.driverName).decode()} {vk.ffi.string(props12.driverInfo).decode()}".strip()
    key = f"{bytes(props11.deviceUUID).hex()}-{bytes(props11.driverUUID).hex()}-{properties.properties.driverVersion:08x}"
    period = limits.timestampPeriod if timestamp_bits else 0.0
    full = "computeFullSubgroups" in present
    return Probe(caps, driver, memory, floor, missing, frozenset(present), family, required, full, key, period, timestamp_bits)


def _present_features(physical: Any, api_minor: int) -> set[str]:
    chain = feature_structs(frozenset(), api_minor)
    vk.lib.vkGetPhysicalDeviceFeatures2(physical, chain)
    structs, pointer = {"": chain.features}, chain.pNext
    for version in ("11", "12", "13"):
        if int(version[1]) <= api_minor:
            structs[version] = vk.ffi.cast(f"VkPhysicalDeviceVulkan{version}Features*", pointer)
            pointer = structs[version].pNext
    table = FLOOR | OPTIONAL
    return {name for name, version in table.items() if version in structs and getattr(structs[version], name)}


def _compute_queue(physical: Any) -> tuple[int, int]:
    """(index, timestamp bits) of the queue family to use; the index is -1 where there is none."""
    families = vk.enumerate_all("VkQueueFamilyProperties", vk.lib.vkGetPhysicalDeviceQueueFamilyProperties, physical)
    compute, graphics = vk.constant("QUEUE_COMPUTE_BIT"), vk.constant("QUEUE_GRAPHICS_BIT")
    usable = [(bool(f.queueFlags & graphics), i) for i, f in enumerate(families) if f.queueFlags & compute]
    if not usable:
        return -1, 0
    # The family with graphics is the one every driver schedules best; a compute-only one shares the machine with a desktop.
    _, index = max(usable, key=lambda entry: (entry[0], -entry[1]))
    return index, families[index].timestampValidBits
