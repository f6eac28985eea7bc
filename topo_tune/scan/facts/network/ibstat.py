"""`ibstat`: every channel adapter with its ports, a block of indented lines each."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, said, whole_number

# `ibstat` writes `CA 'mlx5_0'`, `ibstat mlx5_0 1` writes `CA: 'mlx5_0'`.
_ADAPTER = re.compile(rf"\s*CA:?\s+'({rdma.DEVICE_NAME})'\s*$")
_PORT = re.compile(r"\s*Port\s+(\d{1,3}):\s*$")
_FIELD = re.compile(r"\s*([A-Za-z][A-Za-z ]{2,24}):[ \t]*(.*)$")


def parse(text: str, *, file: str | None = None) -> rdma.Devices:
    """The adapters of an `ibstat`. Raises InputError where no line names one."""
    task = lines_of_one_task(text)
    problems = list(task.problems)
    adapters: dict[str, _Adapter] = {}
    current: _Adapter | None = None
    fields: dict[str, str] = {}
    for number, line in task.lines:
        if adapter := _ADAPTER.match(line):
            name = adapter.group(1)
            if name in adapters:
                problems.append(f"line {number}: a second block for `{clipped(name, 30)}` is left out")
                current, fields = _Adapter({}, {}), {}
            else:
                current = adapters[name] = _Adapter({}, {})
                fields = current.fields
        elif current is not None and (port := _PORT.match(line)):
            fields = current.ports.setdefault(int(port.group(1)), {})
        elif current is not None and (field := _FIELD.match(line)):
            fields.setdefault(field.group(1), field.group(2))
    if not adapters:
        raise rdma.no_devices(
            "lines like `CA 'mlx5_0'`", task.lines, file, "`ibstat` without options writes them"
        )
    problems += _missing(adapters)
    return rdma.Devices(rdma.joined(_device(name, a) for name, a in adapters.items()), tuple(problems))


class _Adapter(msgspec.Struct):
    """Fields of one block as text, and those of each of its ports."""

    fields: dict[str, str]
    ports: dict[int, dict[str, str]]


def _missing(adapters: dict[str, _Adapter]) -> list[str]:
    """Blocks that end too early: a cut file must be seen as one."""
    missing = []
    for name, adapter in adapters.items():
        expected = whole_number(adapter.fields.get("Number of ports"))
        if not adapter.ports or (expected is not None and len(adapter.ports) < min(expected, 8)):
            missing.append(f"the block of `{clipped(name, 30)}` is incomplete: a port is missing")
        elif any("State" not in port for port in adapter.ports.values()):
            missing.append(f"the block of `{clipped(name, 30)}` is incomplete: no state of a port")
    return missing


def _device(name: str, adapter: _Adapter) -> RdmaDevice:
    fields = adapter.fields
    return RdmaDevice(
        name=name,
        ports=tuple(_port(number, adapter.ports[number]) for number in sorted(adapter.ports)),
        type=_short(fields.get("CA type")),
        firmware=_short(fields.get("Firmware version")),
        node_guid=rdma.guid(fields.get("Node GUID")),
        system_guid=rdma.guid(fields.get("System image GUID")),
    )


def _port(number: int, fields: dict[str, str]) -> RdmaPort:
    return RdmaPort(
        port=number,
        state=rdma.state(fields.get("State")),
        physical_state=rdma.physical_state(fields.get("Physical state")),
        rate_gbit_per_s=rdma.gbit_per_s(fields.get("Rate")),
        link_layer=rdma.link_layer(fields.get("Link layer")),
        lid=rdma.lid(fields.get("Base lid")),
        sm_lid=rdma.lid(fields.get("SM lid")),
    )


def _short(text: str | None) -> str | None:
    value = said(text)
    return clipped(value, 60) if value else None


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`ibstat` output", matches(rf"^.{{0,30}}\bCA:? '{rdma.DEVICE_NAME}'[ \t]*$"), tell=rdma.telling(parse)
    ),
)
