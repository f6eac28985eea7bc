"""What a saved file about a job or the cluster says, in a line or two."""

from __future__ import annotations

from collections.abc import Iterable

from topo_tune.records.cluster_documents import FabricMap, HealthChecks, HostList, SlurmDevices, TraceSummary
from topo_tune.records.document import DocumentBody
from topo_tune.records.nccl_documents import (
    GraphFile,
    JobSettings,
    MeasuredRun,
    NcclLog,
    NcclTests,
    TopologyFile,
    TunerTable,
)
from topo_tune.report.text import counted, folded

_NAMES_SHOWN = 4


def summary(body: DocumentBody) -> str:
    """The facts that tell one file of its kind from another."""
    if isinstance(body, TopologyFile):
        return _topology(body)
    if isinstance(body, GraphFile):
        graphs = (f"{graph.pattern}: {counted(graph.channels, 'channel')}" for graph in body.graphs)
        return f"{counted(len(body.graphs), 'graph')}: " + "; ".join(graphs)
    if isinstance(body, TunerTable):
        return _tuner(body)
    if isinstance(body, NcclLog):
        return _log(body)
    if isinstance(body, NcclTests):
        return _tests(body)
    if isinstance(body, FabricMap):
        return _fabric(body)
    if isinstance(body, HostList):
        groups = f" in {counted(len(body.groups), 'group')}" if body.groups else ""
        return f"{counted(len(body.hosts), 'host')}{groups}" + (
            f": {folded(body.hosts)}" if body.hosts else ""
        )
    if isinstance(body, SlurmDevices):
        return _several(f"{count} x {name}" for name, count in body.devices) or "no device"
    if isinstance(body, HealthChecks):
        return counted(len(body.checks), "check")
    if isinstance(body, JobSettings):
        return f"{counted(len(body.settings), 'NCCL setting')}, read as {body.format}"
    assert isinstance(body, TraceSummary)
    return _trace(body)


def _topology(body: TopologyFile) -> str:
    # Where no element says what it is, no GPU and no NIC means nothing.
    is_untold = not body.gpus and not body.nets and body.unclassified > 0
    parts = [
        "GPUs and NICs unknown" if is_untold else counted(len(body.gpus), "GPU"),
        "" if is_untold else counted(len(body.nets), "NIC"),
        counted(len(body.cpus), "NUMA node"),
        counted(body.nvswitches, "NVSwitch", "NVSwitches") if body.nvswitches else "",
        counted(body.unclassified, "PCI device") + " without a class" if body.unclassified else "",
        "AMD" if body.vendor == "amd" else "",
    ]
    return ", ".join(part for part in parts if part)


def _tuner(body: TunerTable) -> str:
    collectives = sorted({rule.collective for rule in body.rules})
    return f"{counted(len(body.rules), 'rule')} for {', '.join(collectives) or 'nothing'}"


def _log(body: NcclLog) -> str:
    parts = [
        f"{body.library} {body.version or 'of unknown version'}",
        counted(body.ranks, "rank") if body.ranks else "",
        f"on {counted(len(body.hosts), 'host')}" if body.hosts else "",
        f"over {body.network}" if body.network else "",
        counted(body.channels, "channel") if body.channels else "",
    ]
    text = ", ".join(part for part in parts if part)
    if body.cause is None:
        return text
    return f"{text}; {'failed' if body.cause.is_fatal else 'went on despite'}: {body.cause.kind.value}"


def _tests(body: NcclTests) -> str:
    if not body.runs:
        return f"no measurement: {body.cause or 'no table in it'}"
    texts = [_run(run) for run in body.runs[:_NAMES_SHOWN]]
    more = f"; and {len(body.runs) - _NAMES_SHOWN} more runs" if len(body.runs) > _NAMES_SHOWN else ""
    return "; ".join(texts) + more


def _run(run: MeasuredRun) -> str:
    ranks = f"{counted(run.ranks, 'rank')}, " if run.ranks else ""
    rows = counted(len(run.rows), "row") if run.rows else "no row"
    best = run.best_busbw_gb_per_s
    speed = "" if best is None else f", best busbw {best:g} GB/s"
    return f"{run.test or 'a collective'}: {ranks}{rows}{speed}"


def _fabric(body: FabricMap) -> str:
    what = "block" if body.form == "slurm block" else "switch"
    plural = "blocks" if what == "block" else "switches"
    speeds = _several(f"{count} x {speed}" for speed, count in body.link_speeds)
    text = f"{body.form}: {counted(len(body.switches), what, plural)}, {counted(body.node_count, 'end')}"
    return f"{text}, links {speeds}" if speeds else text


def _trace(body: TraceSummary) -> str:
    rank = "rank unknown" if body.rank is None else f"rank {body.rank}"
    world = "" if body.world_size is None else f" of {body.world_size}"
    count = sum(times for _, times in body.kernels)
    sizes = "with message sizes" if body.has_message_sizes else "without message sizes"
    return f"{rank}{world}, {counted(body.events, 'event')}, {counted(count, 'NCCL kernel')} {sizes}"


def _several(texts: Iterable[str]) -> str:
    found = list(texts)
    return ", ".join(found[:_NAMES_SHOWN]) + (
        f" and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else ""
    )
