"""What a saved file about a job or the cluster says, in a line or two."""

from __future__ import annotations

from collections.abc import Iterable

from topo_tune.records.cluster_documents import FabricMap, HealthChecks, HostList, SlurmDevices, TraceSummary
from topo_tune.records.document import DocumentBody
from topo_tune.records.nccl_documents import GraphFile, NcclLog, NcclTests, TopologyFile, TunerTable
from topo_tune.report.text import folded

_NAMES_SHOWN = 4


def summary(body: DocumentBody) -> str:
    """The facts that tell one file of its kind from another."""
    if isinstance(body, TopologyFile):
        return _topology(body)
    if isinstance(body, GraphFile):
        graphs = (f"{graph.pattern}: {_counted(graph.channels, 'channel')}" for graph in body.graphs)
        return f"{_counted(len(body.graphs), 'graph')}: " + "; ".join(graphs)
    if isinstance(body, TunerTable):
        return _tuner(body)
    if isinstance(body, NcclLog):
        return _log(body)
    if isinstance(body, NcclTests):
        return _tests(body)
    if isinstance(body, FabricMap):
        return _fabric(body)
    if isinstance(body, HostList):
        groups = f" in {_counted(len(body.groups), 'group')}" if body.groups else ""
        return f"{_counted(len(body.hosts), 'host')}{groups}" + (
            f": {folded(body.hosts)}" if body.hosts else ""
        )
    if isinstance(body, SlurmDevices):
        return _several(f"{count} x {name}" for name, count in body.devices) or "no device"
    if isinstance(body, HealthChecks):
        return _counted(len(body.checks), "check")
    assert isinstance(body, TraceSummary)
    return _trace(body)


def _topology(body: TopologyFile) -> str:
    parts = [
        _counted(len(body.gpus), "GPU"),
        _counted(len(body.nets), "NIC"),
        _counted(len(body.cpus), "NUMA node"),
        _counted(body.nvswitches, "NVSwitch", "NVSwitches") if body.nvswitches else "",
        f"{body.unclassified} PCI devices without a class" if body.unclassified else "",
        "AMD" if body.vendor == "amd" else "",
    ]
    return ", ".join(part for part in parts if part)


def _tuner(body: TunerTable) -> str:
    collectives = sorted({rule.collective for rule in body.rules})
    return f"{_counted(len(body.rules), 'rule')} for {', '.join(collectives) or 'nothing'}"


def _log(body: NcclLog) -> str:
    parts = [
        f"{body.library} {body.version or 'of unknown version'}",
        _counted(body.ranks, "rank") if body.ranks else "",
        f"on {_counted(len(body.hosts), 'host')}" if body.hosts else "",
        f"over {body.network}" if body.network else "",
        _counted(body.channels, "channel") if body.channels else "",
    ]
    text = ", ".join(part for part in parts if part)
    return text if body.cause is None else f"{text}; failed: {body.cause.kind.value}"


def _tests(body: NcclTests) -> str:
    if not body.runs:
        return f"no measurement: {body.cause or 'no table in it'}"
    texts = []
    for run in body.runs[:_NAMES_SHOWN]:
        best = max(
            (
                half.busbw_gb_per_s or 0
                for row in run.rows
                for half in (row.out_of_place, row.in_place)
                if half
            ),
            default=0,
        )
        ranks = f"{_counted(run.ranks, 'rank')}, " if run.ranks else ""
        texts.append(
            f"{run.test or 'a collective'}: {ranks}{_counted(len(run.rows), 'row')}, best busbw {best:g} GB/s"
        )
    more = f"; and {len(body.runs) - _NAMES_SHOWN} more runs" if len(body.runs) > _NAMES_SHOWN else ""
    return "; ".join(texts) + more


def _fabric(body: FabricMap) -> str:
    what = "block" if body.form == "slurm block" else "switch"
    plural = "blocks" if what == "block" else "switches"
    speeds = _several(f"{count} x {speed}" for speed, count in body.link_speeds)
    text = f"{body.form}: {_counted(len(body.switches), what, plural)}, {_counted(body.node_count, 'end')}"
    return f"{text}, links {speeds}" if speeds else text


def _trace(body: TraceSummary) -> str:
    rank = "rank unknown" if body.rank is None else f"rank {body.rank}"
    world = "" if body.world_size is None else f" of {body.world_size}"
    count = sum(times for _, times in body.kernels)
    sizes = "with message sizes" if body.has_message_sizes else "without message sizes"
    return f"{rank}{world}, {_counted(body.events, 'event')}, {_counted(count, 'NCCL kernel')} {sizes}"


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _several(texts: Iterable[str]) -> str:
    found = list(texts)
    return ", ".join(found[:_NAMES_SHOWN]) + (
        f" and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else ""
    )
