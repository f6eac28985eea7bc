"""`ibstatus`: a block for each port of each RDMA device, with the kernel's own words."""

from __future__ import annotations

import re

from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

_HEAD = re.compile(rf"\s*Infiniband device '({rdma.DEVICE_NAME})' port (\d{{1,3}}) status:")
_FIELD = re.compile(r"\s*(base lid|sm lid|state|phys state|rate|link_layer):[ \t]*(.*)$")


def parse(text: str, *, file: str | None = None) -> rdma.Devices:
    """The ports of an `ibstatus`. Raises InputError where no line begins a block."""
    task = lines_of_one_task(text)
    problems = list(task.problems)
    blocks: dict[tuple[str, int], dict[str, str]] = {}
    current: dict[str, str] | None = None
    for number, line in task.lines:
        if head := _HEAD.match(line):
            key = (head.group(1), int(head.group(2)))
            if key in blocks:
                problems.append(f"line {number}: a second block for `{clipped(key[0], 30)}` is left out")
                current = {}
            else:
                current = blocks[key] = {}
        elif current is not None and (field := _FIELD.match(line)):
            current.setdefault(field.group(1), field.group(2))
    if not blocks:
        what = "lines like `Infiniband device 'mlx5_0' port 1 status:`"
        raise rdma.no_devices(what, task.lines, file, "`ibstatus` writes them")
    problems += [
        f"the block of `{clipped(name, 30)}` is incomplete: no state"
        for (name, _), fields in blocks.items()
        if "state" not in fields
    ]
    devices = (RdmaDevice(name, (_port(port, fields),)) for (name, port), fields in blocks.items())
    return rdma.Devices(rdma.joined(devices), tuple(problems))


def _port(number: int, fields: dict[str, str]) -> RdmaPort:
    # The default GID is left out: one row of a table would look like the whole of it.
    return RdmaPort(
        port=number,
        state=rdma.state(fields.get("state")),
        physical_state=rdma.physical_state(fields.get("phys state")),
        rate_gbit_per_s=rdma.gbit_per_s(fields.get("rate")),
        link_layer=rdma.link_layer(fields.get("link_layer")),
        lid=rdma.lid(fields.get("base lid")),
        sm_lid=rdma.lid(fields.get("sm lid")),
    )


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`ibstatus` output", matches(r"^.{0,30}Infiniband device '.{1,64}' port \d"), tell=rdma.telling(parse)
    ),
)
