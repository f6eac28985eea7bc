"""PyTorch profiler traces: JSON of Chrome's trace event form, as Kineto writes it.

Keys: https://github.com/pytorch/kineto: libkineto/src/output_json.cpp. What a collective moved is on the kernel since
PyTorch records NCCL metadata: pytorch/pytorch: torch/csrc/profiler/util.cpp, `saveNcclMeta`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import TraceSummary
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped

_KERNELS_LIMIT = 200
_ELEMENTS = b'"In msg nelems"'

_RECOGNISE = re.compile(
    r'\A\s*\{(?=.{0,4000}"(?:traceEvents|deviceProperties)")'
    r'(?=.{0,4000}"(?:traceEvents|distributedInfo|schemaVersion|deviceProperties|record_shapes)")'
    r'|\A\s*\[\s*\{(?=.{0,4000}"ph")(?=.{0,4000}"ts")(?=.{0,4000}"name")',
    re.S,
)
_NCCL_WORD = re.compile(r"\w{0,80}nccl\w{0,160}", re.I)
# Kineto writes what printf makes of a float, which JSON has no word for.
_NO_NUMBER = re.compile(rb"(:[ \t]?)-?(?:NaN|nan|Infinity|inf)\b")


class _Event(msgspec.Struct):
    """One event, as far as it matters here. Everything else is skipped, unread."""

    name: Any = None
    cat: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _DistributedInfo(msgspec.Struct):
    rank: Any = None
    world_size: Any = None
    backend: Any = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the file's word
    distributedInfo: _DistributedInfo | None = None  # noqa: N815 - the file's word


_TRACE = msgspec.json.Decoder(_Trace)
_EVENTS = msgspec.json.Decoder(list[_Event])


def recognise(text: str) -> bool:
    """Whether a text begins as a trace does."""
    return _RECOGNISE.match(text) is not None


def parse(text: str, file: str | None = None) -> tuple[TraceSummary, tuple[str, ...]]:
    """What a trace has of NCCL. Raises InputError where it is cut off or no trace."""
    trace = _decoded(text.encode("utf-8", "replace"), file)
    kernels: Counter[str] = Counter()
    annotations = 0
    has_sizes = False
    for event in trace.traceEvents:
        if not isinstance(event.name, str):
            continue
        if event.cat == "kernel" and (word := _NCCL_WORD.search(event.name)) is not None:
            kernels[word.group()] += 1
        elif event.cat == "user_annotation" and event.name.startswith("nccl:"):
            annotations += 1
        elif event.name != "record_param_comms":
            continue
        has_sizes = has_sizes or _ELEMENTS in bytes(event.args)
    info = trace.distributedInfo or _DistributedInfo()
    backend = info.backend if isinstance(info.backend, str) else None
    left_out = len(kernels) - _KERNELS_LIMIT
    summary = TraceSummary(
        rank=_small(info.rank),
        world_size=_small(info.world_size),
        backend=None if backend is None else clipped(backend),
        events=len(trace.traceEvents),
        kernels=tuple(kernels.most_common(_KERNELS_LIMIT)),
        annotations=annotations,
        has_message_sizes=has_sizes,
    )
    return summary, (f"{left_out} more kernel names are left out",) if left_out > 0 else ()


def _decoded(data: bytes, file: str | None) -> _Trace:
    try:
        return _try(data)
    except (msgspec.DecodeError, RecursionError) as first:
        repaired = _NO_NUMBER.sub(rb"\1null", data)
        if repaired != data:
            try:
                return _try(repaired)
            except (msgspec.DecodeError, RecursionError):
                pass
        raise _unreadable(data, first, file) from first


def _try(data: bytes) -> _Trace:
    if data.lstrip()[:1] == b"[":
        return _Trace(_EVENTS.decode(data))
    return _TRACE.decode(data)


def _unreadable(data: bytes, error: Exception, file: str | None) -> InputError:
    hint = "copy the whole file again; the profiler may not have finished writing it"
    if "truncated" in str(error) or data.rstrip()[-1:] not in (b"}", b"]"):
        return InputError("is a profiler trace that is cut off", file=file, hint=hint)
    return InputError(f"is no profiler trace: {clipped(str(error), 120)}", file=file, hint=hint)


def _small(value: Any) -> int | None:
    """A rank or a number of ranks; what is not a plausible one is unknown."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1 << 31 else None


KINDS: tuple[SavedKind, ...] = (SavedKind("PyTorch profiler trace", recognise, document=parse),)
