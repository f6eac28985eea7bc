"""What the bytes of a shared library say: version, names of variables, interfaces that it exports.

The file is mapped and searched, never loaded. Only the sections that can hold the answer are looked at: of a
libnccl of 400 MB, nearly all code for GPUs, that is 200 kB. Standard library only, Python 3.8.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import Any, Dict, List, Optional, Tuple

NAMES_LIMIT = 2000
SYMBOLS_LIMIT = 64
UNSECTIONED_LIMIT_BYTES = 1 << 30
"""Of a file without ELF sections, which is searched from its beginning: some 0.3 s a GiB from the page cache."""

# Kept there for `strings` (NCCL's src/init.cc: VERSION_STRING).
_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)[0-9A-Za-z.~-]*\+cuda\d")
# A string of its own, or the end of one: `Set NCCL_NET` is not told from `NCCL_NET`, which does no harm.
_NAME = re.compile(rb"NCCL_[A-Z0-9_]{2,64}(?=\0)")
_INTERFACE = re.compile(rb"nccl(?:Net|CollNet|Gin|Rma|Tuner|Profiler|Env)(?:Plugin)?_v\d{1,3}(?=\0)")

_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_SECTIONS_LIMIT = 4096
_HOLDS_NOTHING = 8  # SHT_NOBITS

Json = Dict[str, Any]
Span = Tuple[int, int]


def look_into(path: str) -> Json:
    """What a library says: `version`; `names` of NCCL variables; `interfaces` of plugins that it exports, and those
    that it `accepts`, whose names it holds to look for them.

    Raises OSError, and ValueError for a file that cannot be mapped.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = _sections(data)
        whole = (0, min(len(data), UNSECTIONED_LIMIT_BYTES))
        constants = sections.get(b".rodata", whole)
        version = _VERSION.search(data, *constants)
        return {
            "version": version.group(1).decode("ascii") if version else None,
            "names": _all(_NAME, data, constants)[:NAMES_LIMIT],
            "accepts": _all(_INTERFACE, data, constants)[:SYMBOLS_LIMIT],
            "interfaces": _all(_INTERFACE, data, sections.get(b".dynstr", whole))[:SYMBOLS_LIMIT],
        }


def version_in(path: str) -> Optional[str]:
    """The NCCL version in a library's bytes, or None."""
    try:
        version: Optional[str] = look_into(path)["version"]
        return version
    except (OSError, ValueError):
        # mmap refuses an empty file with a ValueError
        return None


def _all(pattern: Any, data: mmap.mmap, span: Span) -> List[str]:
    return sorted({match.group(0).decode("ascii") for match in pattern.finditer(data, *span)})


def _sections(data: mmap.mmap) -> Dict[bytes, Span]:
    """Where each section lies, by name; nothing where this is no 64-bit ELF file with sections."""
    if data[: len(_ELF64_LITTLE_ENDIAN)] != _ELF64_LITTLE_ENDIAN:
        return {}
    try:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
        if not table or count > _SECTIONS_LIMIT or names_at >= count or table + size * count > len(data):
            return {}
        # sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size
        headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    except struct.error:
        return {}
    names_begin, names_end = _span(headers[names_at])
    found: Dict[bytes, Span] = {}
    if names_end > len(data):
        return found
    for header in headers:
        begin = names_begin + header[0]
        end = data.find(b"\0", begin, names_end)
        begin_at, end_at = _span(header)
        if end > begin and header[1] != _HOLDS_NOTHING and end_at <= len(data):
            found[data[begin:end]] = (begin_at, end_at)
    return found


def _span(header: Tuple[int, ...]) -> Span:
    return header[4], header[4] + header[5]
