"""Known data in a rank's memory: put there, and looked for there, as plain bytes and block by block.

Runs on the node, Python 3.8 and newer; torch is an argument.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence, Tuple

from topo_tune.on_node.data_types import DataType, encode
from topo_tune.on_node.known_data import Span

BLOCK_BYTES = 4 << 20
"""of a pattern that is made at once: a message of many GiB needs no second one of its size"""
POISON = 0xFF
"""what a receive buffer holds before a check, so that what an earlier call left there is not taken for a result"""


def put(torch: Any, memory: Any, spans: Sequence[Span], kind: DataType) -> None:
    """Write the spans into a buffer of bytes."""
    for first, piece in _pieces(torch, memory, spans, kind):
        memory[first : first + piece.numel()].copy_(piece)


def holds(torch: Any, memory: Any, spans: Sequence[Span], kind: DataType) -> bool:
    """Whether a buffer holds exactly these spans."""
    pieces = _pieces(torch, memory, spans, kind)
    return all(torch.equal(memory[first : first + piece.numel()], piece) for first, piece in pieces)


def _pieces(torch: Any, memory: Any, spans: Sequence[Span], kind: DataType) -> Iterator[Tuple[int, Any]]:
    for span in spans:
        block = torch.frombuffer(_block(span, kind), dtype=torch.uint8).to(memory.device)
        first, end = span.start * kind.item_bytes, (span.start + span.length) * kind.item_bytes
        while first < end:
            piece = block[: end - first]
            yield first, piece
            first += piece.numel()


def _block(span: Span, kind: DataType) -> bytearray:
    """Whole periods of a span's pattern: as many as it has, or as fit."""
    begin = span.offset % len(span.pattern)
    period = encode(span.pattern[begin:] + span.pattern[:begin], kind)
    needed = -(-span.length * kind.item_bytes // len(period))
    return bytearray(period * max(1, min(needed, BLOCK_BYTES // len(period))))
