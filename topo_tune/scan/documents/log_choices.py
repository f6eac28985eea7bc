"""Which algorithm and protocol NCCL chose: `AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Numbers of the enums, which 2.5 to 2.23 printed; CollNet was one algorithm before 2.14 (`src/include/nccl_common.h`).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_CHOICE = re.compile(
    r"(?:(\w{1,32}): )?(\d{1,20}) Bytes -> Algo(?:rithm)? ([A-Z_\d]{1,20}) proto(?:col)? ([A-Z\d]{1,10})\b"
)


def choice_of(text: str, versions: Iterable[str]) -> str | None:
    """`AllReduce RING LL`; without the function where the version did not print it; None for another line.

    versions: NCCL versions of the log, which tell what the older ones' numbers mean.
    """
    found = _CHOICE.match(text)
    if found is None:
        return None
    function, _, algorithm, protocol = found.groups()
    if algorithm.isdecimal():
        number = int(algorithm[:4])
        algorithm = _ALGORITHMS[number] if number < len(_ALGORITHMS) else algorithm
        if algorithm == "COLLNET_DIRECT" and any(_minor(version) < 14 for version in versions):
            algorithm = "COLLNET"
    if protocol.isdecimal():
        number = int(protocol[:4])
        protocol = _PROTOCOLS[number] if number < len(_PROTOCOLS) else protocol
    return " ".join(word for word in (function, algorithm, protocol) if word)


def _minor(version: str) -> int:
    found = re.match(r"2\.(\d{1,3})\b", version)
    return int(found.group(1)) if found else 99
