"""NCCL called directly: the library that torch has loaded, through ctypes.

torch's own collectives wait for events between streams, about 5 us a call inside a CUDA graph; a direct call is what
nccl-tests measures. It also opens the settings of one communicator (`ncclConfig_t`) and NCCL's own estimate of a time.

Runs on the node, Python 3.8 and newer, standard library only. Facts: NVIDIA/nccl src/nccl.h.in at 2.28 to 2.31.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

UNDEFINED = -(2**31)
"""NCCL_CONFIG_UNDEF_INT: the field is left to NCCL"""
_API_MAGIC = 0xCAFEBEEF
_SIMULATION_MAGIC = 0x74685283

RESULTS = (
    "success",
    "unhandled CUDA error",
    "system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote error",
    "in progress",
    "timeout",
)
"""ncclResult_t by number, in words"""
IN_PROGRESS = 7

DATA_TYPES: Dict[str, Tuple[int, int]] = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "int32": (2, 4),
    "int64": (4, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
    "float8_e4m3fn": (10, 1),
    "float8_e5m2": (11, 1),
}
"""torch's name -> (ncclDataType_t, bytes of an element)"""
FIRST_WITH_FP8 = (2, 24)
SUM = 0
"""ncclRedOp_t"""

# Whole numbers of ncclConfig_t in its order, behind size, magic and version; `netName` and `commName` are pointers
# between them. Each with the first version whose structure has it: a longer one is refused by an older library.
_CONFIG_FIELDS: Tuple[Tuple[str, Any, Tuple[int, int]], ...] = (
    ("blocking", ctypes.c_int, (2, 14)),
    ("cgaClusterSize", ctypes.c_int, (2, 17)),
    ("minCTAs", ctypes.c_int, (2, 17)),
    ("maxCTAs", ctypes.c_int, (2, 17)),
    ("netName", ctypes.c_char_p, (2, 17)),
    ("splitShare", ctypes.c_int, (2, 18)),
    ("trafficClass", ctypes.c_int, (2, 24)),
    ("commName", ctypes.c_char_p, (2, 27)),
    ("collnetEnable", ctypes.c_int, (2, 27)),
    ("CTAPolicy", ctypes.c_int, (2, 27)),
    ("shrinkShare", ctypes.c_int, (2, 27)),
    ("nvlsCTAs", ctypes.c_int, (2, 27)),
    ("nChannelsPerNetPeer", ctypes.c_int, (2, 28)),
    ("nvlinkCentricSched", ctypes.c_int, (2, 28)),
)


class NcclError(Exception):
    """A call that NCCL refused or could not finish, with its own last words."""

    def __init__(self, call: str, result: int, last_words: str) -> None:
        what = RESULTS[result] if 0 <= result < len(RESULTS) else "result %d" % result
        super().__init__("%s: %s (%d)%s" % (call, what, result, ": " + last_words if last_words else ""))
        self.call, self.result, self.last_words = call, result, last_words


class UniqueId(ctypes.Structure):
    """ncclUniqueId: what ranks must share before they can meet. Passed by value."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class _SimulationInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("estimated_seconds", ctypes.c_float),
    ]


def loaded_library(maps: str) -> Optional[str]:
    """Path of the libnccl that this process has mapped, from the text of /proc/self/maps; None where none is."""
    found = re.search(r"\s(/\S*libnccl\.so\S*)$", maps, re.M)
    if found is None:
        # linked statically into torch
        found = re.search(r"\s(/\S*libtorch_cuda\.so\S*)$", maps, re.M)
    return None if found is None else found.group(1)


class Nccl:
    """The functions of one loaded library. Every call raises NcclError where NCCL does not answer `success`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        code = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(code))
        self.code = code.value
        self.version = version_of_code(code.value)
        self._config = config_structure(self.version)

    @classmethod
    def of_torch(cls) -> "Nccl":
        """The library that the imported torch uses. Raises OSError where it cannot be found or lacks a function."""
        with open("/proc/self/maps") as file:
            path = loaded_library(file.read())
        if path is None:
            raise OSError("torch has loaded no libnccl")
        library = ctypes.CDLL(path)
        for name in ("ncclCommInitRankConfig", "ncclAllReduce", "ncclGetUniqueId"):
            if not hasattr(library, name):
                raise OSError("%s exports no %s" % (path, name))
        return cls(library)

    def unique_id(self) -> bytes:
        """A new meeting point; rank 0 makes it and passes it on."""
        identity = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(identity))
        return ctypes.string_at(ctypes.byref(identity), 128)

    def communicator(
        self, world: int, rank: int, identity: bytes, config: Optional[Mapping[str, int]] = None
    ) -> "Communicator":
        """Meet the other ranks. `config`: fields of ncclConfig_t. Raises ValueError for a field it does not have."""
        structure = self._config()
        structure.size = ctypes.sizeof(self._config)
        structure.magic = _API_MAGIC
        structure.version = self.code
        known = [
            name for name, kind, _ in _CONFIG_FIELDS if kind is ctypes.c_int and hasattr(structure, name)
        ]
        for name in known:
            setattr(structure, name, UNDEFINED)
        for name, value in (config or {}).items():
            if name not in known:
                raise ValueError(
                    "NCCL %s has no `%s` in its configuration" % (version_text(self.version), name)
                )
            setattr(structure, name, int(value))
        handle = ctypes.c_void_p()
        self._call(
            "ncclCommInitRankConfig",
            ctypes.byref(handle),
            ctypes.c_int(world),
            UniqueId.from_buffer_copy(identity),
            ctypes.c_int(rank),
            ctypes.byref(structure),
        )
        return Communicator(self, handle, world, rank)

    def group(self, calls: Callable[[], None]) -> None:
        """Everything that `calls` asks for, as one group."""
        self._call("ncclGroupStart")
        try:
            calls()
        finally:
            self._call("ncclGroupEnd")

    def estimate(self, calls: Callable[[], None]) -> float:
        """NCCL's own estimate of what `calls` would take, in seconds; nothing is run. Needs 2.22."""
        self._call("ncclGroupStart")
        info = _SimulationInfo(ctypes.sizeof(_SimulationInfo), _SIMULATION_MAGIC, self.code, -1.0)
        try:
            calls()
        finally:
            self._call("ncclGroupSimulateEnd", ctypes.byref(info))
        # the library counts in microseconds
        return float(info.estimated_seconds) / 1e6

    def last_words(self, handle: Any = None) -> str:
        """NCCL's text on its last error, or nothing."""
        ask = getattr(self._library, "ncclGetLastError", None)
        if ask is None:
            return ""
        ask.restype = ctypes.c_char_p
        text = ask(handle if handle is not None else ctypes.c_void_p())
        return " ".join((text or b"").decode("utf-8", "replace").split())[:400]

    def _call(self, name: str, *arguments: Any, handle: Any = None) -> None:
        result = int(getattr(self._library, name)(*arguments))
        if result != 0:
            raise NcclError(name, result, self.last_words(handle))


class Communicator:
    """One rank's part of a communicator. Buffers and streams are addresses; counts are elements."""

    def __init__(self, nccl: Nccl, handle: Any, world: int, rank: int) -> None:
        self._nccl, self._handle, self.world, self.rank = nccl, handle, world, rank

    def all_reduce(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        """The sum of all ranks, on all ranks."""
        self._run("ncclAllReduce", send, receive, _size(count), dtype, SUM, stream=stream)

    def all_gather(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        """`count` of every rank, on all ranks."""
        self._run("ncclAllGather", send, receive, _size(count), dtype, stream=stream)

    def reduce_scatter(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        """The sum of all ranks, `count` of it on each."""
        self._run("ncclReduceScatter", send, receive, _size(count), dtype, SUM, stream=stream)

    def broadcast(self, send: int, receive: int, count: int, dtype: int, root: int, stream: int) -> None:
        """What `root` has, on all ranks."""
        self._run("ncclBroadcast", send, receive, _size(count), dtype, root, stream=stream)

    def reduce(self, send: int, receive: int, count: int, dtype: int, root: int, stream: int) -> None:
        """The sum of all ranks, on `root`."""
        self._run("ncclReduce", send, receive, _size(count), dtype, SUM, root, stream=stream)

    def send(self, buffer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """To one rank; belongs into a group with its `receive`."""
        self._nccl._call(
            "ncclSend",
            ctypes.c_void_p(buffer),
            _size(count),
            ctypes.c_int(dtype),
            ctypes.c_int(peer),
            self._handle,
            ctypes.c_void_p(stream),
            handle=self._handle,
        )

    def receive(self, buffer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """From one rank."""
        self._nccl._call(
            "ncclRecv",
            ctypes.c_void_p(buffer),
            _size(count),
            ctypes.c_int(dtype),
            ctypes.c_int(peer),
            self._handle,
            ctypes.c_void_p(stream),
            handle=self._handle,
        )

    def check(self) -> None:
        """Raise what went wrong behind a call that had already returned."""
        result = ctypes.c_int()
        self._nccl._call("ncclCommGetAsyncError", self._handle, ctypes.byref(result), handle=self._handle)
        if result.value not in (0, IN_PROGRESS):
            raise NcclError("asynchronous part of a call", result.value, self._nccl.last_words(self._handle))

    def destroy(self) -> None:
        """Wait for everything that was asked, and let go. All ranks must do it.

        Waits for ever while a CUDA graph exists that has calls on it (`persistentRefs` in NCCL's src/init.cc).
        """
        self._nccl._call("ncclCommFinalize", self._handle, handle=self._handle)
        self._nccl._call("ncclCommDestroy", self._handle)

    def abort(self) -> None:
        """Let go without waiting for anybody. No rank may still need anything of this one; graphs as in `destroy`."""
        self._nccl._call("ncclCommAbort", self._handle)

    def _run(self, name: str, send: int, receive: int, *arguments: Any, stream: int) -> None:
        self._nccl._call(
            name,
            ctypes.c_void_p(send),
            ctypes.c_void_p(receive),
            *[ctypes.c_int(a) if isinstance(a, int) else a for a in arguments],
            self._handle,
            ctypes.c_void_p(stream),
            handle=self._handle,
        )


def version_of_code(code: int) -> Tuple[int, int, int]:
    """(2, 28, 9) from 22809; codes below 2.9 have a digit less."""
    major = 10000 if code >= 10000 else 1000
    return code // major, code % major // 100, code % 100


def version_text(version: Tuple[int, ...]) -> str:
    """`2.28.9`"""
    return ".".join(str(part) for part in version)


def config_structure(version: Tuple[int, ...]) -> Any:
    """The type of ncclConfig_t in this version, as far as this module knows its fields."""
    fields: List[Tuple[str, Any]] = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
    ]
    fields += [(name, kind) for name, kind, since in _CONFIG_FIELDS if version[:2] >= since]
    return type("Config", (ctypes.Structure,), {"_fields_": fields})


def config_fields(version: Tuple[int, ...]) -> Tuple[str, ...]:
    """Names of the whole-number fields that this version takes."""
    return tuple(
        name for name, kind, since in _CONFIG_FIELDS if kind is ctypes.c_int and version[:2] >= since
    )


def _size(count: int) -> Any:
    return ctypes.c_size_t(count)
