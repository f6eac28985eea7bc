"""The command that measures a launch again, for whoever wants to see a failure happen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from topo_tune.records.bench import Launch, Layout
from topo_tune.records.units import format_bytes


def again(
    launch: Launch, cluster_config: str, sizes_bytes: Sequence[int], further: Sequence[str] = ()
) -> str:
    """`topo-tune bench -c FILE --set '...' --sizes ... --collective ... --launches 1`, as a shell takes it.

    The default comes first in that command as well, so that limits of time are taken from it. `further`: options that
    say on which nodes and over which findings.
    """
    words = ["topo-tune", "bench", "-c", cluster_config]
    if launch.env.settings:
        words += ["--set", str(launch.env)]
    words += ["--sizes", ",".join(format_bytes(size) for size in sizes_bytes)]
    words += ["--collective", launch.collective]
    if launch.dtype:
        words += ["--dtype", launch.dtype]
    if launch.layout is not Layout.WORLD:
        words += ["--layout", launch.layout.value]
    if not launch.in_place:
        words += ["--out-of-place"]
    return shlex.join([*words, *further, "--launches", "1"])
