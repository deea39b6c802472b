"""Lists the Vulkan devices, or with --layers the layers, of this machine as JSON.

Run in a process of its own, because a broken driver may crash it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_void_p

LOADERS = ("libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "vulkan-1.dll")
STRUCTURE_TYPE_APPLICATION_INFO = 0
STRUCTURE_TYPE_INSTANCE_CREATE_INFO = 1
STRUCTURE_TYPE_PROPERTIES_2 = 1000059001
STRUCTURE_TYPE_DRIVER_PROPERTIES = 1000196000
ENUMERATE_PORTABILITY_BIT = 1
VULKAN_1_2 = (1 << 22) | (2 << 12)
KINDS = ("other", "integrated", "discrete", "virtual", "cpu")
LIMITS_AND_SPARSE_BYTES = 1024  # what follows pipelineCacheUUID in VkPhysicalDeviceProperties, with room to spare


class ApplicationInfo(Structure):
    _fields_ = (
        ("sType", c_int32),
        ("pNext", c_void_p),
        ("pApplicationName", c_char_p),
        ("applicationVersion", c_uint32),
        ("pEngineName", c_char_p),
        ("engineVersion", c_uint32),
        ("apiVersion", c_uint32),
    )


class InstanceCreateInfo(Structure):
    _fields_ = (
        ("sType", c_int32),
        ("pNext", c_void_p),
        ("flags", c_uint32),
        ("pApplicationInfo", POINTER(ApplicationInfo)),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", POINTER(c_char_p)),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
    )


class DriverProperties(Structure):
    _fields_ = (
        ("sType", c_int32),
        ("pNext", c_void_p),
        ("driverID", c_int32),
        ("driverName", c_char * 256),
        ("driverInfo", c_char * 256),
        ("conformanceVersion", c_uint8 * 4),
    )


class Properties2(Structure):
    _fields_ = (
        ("sType", c_int32),
        ("pNext", c_void_p),
        ("apiVersion", c_uint32),
        ("driverVersion", c_uint32),
        ("vendorID", c_uint32),
        ("deviceID", c_uint32),
        ("deviceType", c_int32),
        ("deviceName", c_char * 256),
        ("rest", c_uint8 * LIMITS_AND_SPARSE_BYTES),
    )


class LayerProperties(Structure):
    _fields_ = (
        ("layerName", c_char * 256),
        ("specVersion", c_uint32),
        ("implementationVersion", c_uint32),
        ("description", c_char * 256),
    )


def load() -> ctypes.CDLL | None:
    for name in LOADERS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def devices() -> list[dict[str, str]]:
    """Devices with Vulkan 1.2 or later; empty without a loader or a driver."""
    vulkan = load()
    if vulkan is None:
        return []
    application = ApplicationInfo(STRUCTURE_TYPE_APPLICATION_INFO, None, b"k3jit", 1, b"k3jit", 1, VULKAN_1_2)
    portability = sys.platform == "darwin"
    extensions = (c_char_p * 1)(b"VK_KHR_portability_enumeration")
    create = InstanceCreateInfo(
        STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        None,
        ENUMERATE_PORTABILITY_BIT if portability else 0,
        ctypes.pointer(application),
        0,
        None,
        1 if portability else 0,
        extensions if portability else None,
    )
    instance = c_void_p()
    if vulkan.vkCreateInstance(byref(create), None, byref(instance)) != 0:
        return []
    count = c_uint32()
    vulkan.vkEnumeratePhysicalDevices(instance, byref(count), None)
    handles = (c_void_p * count.value)()
    vulkan.vkEnumeratePhysicalDevices(instance, byref(count), handles)
    found = []
    for handle in handles[: count.value]:
        driver = DriverProperties(STRUCTURE_TYPE_DRIVER_PROPERTIES, None)
        properties = Properties2(STRUCTURE_TYPE_PROPERTIES_2, ctypes.cast(ctypes.pointer(driver), c_void_p))
        vulkan.vkGetPhysicalDeviceProperties2(c_void_p(handle), byref(properties))
        if properties.apiVersion >= VULKAN_1_2:
            kind = properties.deviceType
            found.append(
                {
                    "name": properties.deviceName.decode(errors="replace"),
                    "kind": KINDS[kind] if 0 <= kind < len(KINDS) else "other",
                    "driver": f"{driver.driverName.decode(errors='replace')} {driver.driverInfo.decode(errors='replace')}",
                }
            )
    return found


def layers() -> list[str]:
    """Names of the installed layers; empty without a loader."""
    vulkan = load()
    if vulkan is None:
        return []
    count = c_uint32()
    vulkan.vkEnumerateInstanceLayerProperties(byref(count), None)
    properties = (LayerProperties * count.value)()
    vulkan.vkEnumerateInstanceLayerProperties(byref(count), properties)
    return [layer.layerName.decode(errors="replace") for layer in properties[: count.value]]


if __name__ == "__main__":
    print(json.dumps(layers() if "--layers" in sys.argv else devices()))
