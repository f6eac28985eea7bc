"""Rules about files of the whole cluster: host lists, Slurm's devices, health checks, traces."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterator

from topo_tune.errors import InputError
from topo_tune.findings.node_names import aliases, has_gpus, short_name, spelled
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import node_of, of_kind
from topo_tune.records.cluster_documents import HealthChecks, HostList, SlurmDevices, TraceSummary
from topo_tune.records.document import Document
from topo_tune.records.finding import Severity
from topo_tune.records.nodeset import expand
from topo_tune.records.scan import NodeScan, Scan

_IB_CHECK = re.compile(r"check_hw_ib\s+(\d{1,4})\s+([\w.-]{1,64})(?::(\d{1,3}))?")
_GPU_CHECK = re.compile(r"check_gpu_count\s+(\d{1,3})")


# --- host lists ---------------------------------------------------------------------------------------------


def _host_files(scan: Scan) -> Iterator[tuple[Document, HostList, set[str]]]:
    """Host files that name at least one scanned node, with the names they list; others have names of their own."""
    known = {name for node in scan.nodes for name in aliases(node)}
    for document, hosts in of_kind(scan, HostList):
        listed = {short_name(host) for host in hosts.hosts}
        if hosts.form == "host file" and listed & known:
            yield document, hosts, listed


def _not_listed(scan: Scan) -> Iterator[Sighting]:
    for document, _, listed in _host_files(scan):
        for node in scan.nodes:
            if has_gpus(node) and not aliases(node) & listed:
                yield Sighting(
                    "a scanned node is not in the host file", node.node, (f"not in {document.file}",)
                )


def _not_scanned(scan: Scan) -> Iterator[Sighting]:
    known = {name for node in scan.nodes for name in aliases(node)}
    known |= {short_name(missing.node) for missing in scan.missing}
    for document, hosts, _ in _host_files(scan):
        unseen = [host for host in hosts.hosts if short_name(host) not in known]
        # A dump of some nodes of many is no mistake; a few that were forgotten may be.
        if unseen and 2 * len(unseen) < len(hosts.hosts):
            yield Sighting(
                "the host file names nodes that were not scanned",
                evidence=(f"{document.file}: {spelled(unseen[:1000])}",),
            )


def _uneven(scan: Scan) -> Iterator[Sighting]:
    for document, hosts in of_kind(scan, HostList):
        slots = dict(hosts.slots)
        if len(set(slots.values())) < 2:
            continue
        usual = Counter(slots.values()).most_common(1)[0][0]
        lines = [f"{host} takes {count}" for host, count in slots.items() if count != usual]
        repeated = dict(hosts.repeated)
        what = "a host file gives some hosts more ranks than others"
        if any(host in repeated for host, count in slots.items() if count != usual):
            what = "a host file names some hosts more often than others, which gives them more ranks"
        yield Sighting(
            what, evidence=tuple(f"{document.file}: {line}, most take {usual}" for line in lines[:100])
        )


def _no_hosts(scan: Scan) -> Iterator[Sighting]:
    for document, hosts in of_kind(scan, HostList):
        if not hosts.hosts:
            yield Sighting(
                "an Ansible inventory has groups and not one active host",
                evidence=(f"{document.file}: {len(hosts.groups)} groups",),
            )


# --- Slurm's devices ----------------------------------------------------------------------------------------


def _gres_count(scan: Scan) -> Iterator[Sighting]:
    for document, gres in of_kind(scan, SlurmDevices):
        if gres.is_template:
            continue
        own = node_of(scan, document)
        lines = _gpu_lines(gres)
        for node in scan.nodes if own is None else (own,):
            count = _configured_gpus(lines, node)
            # A GPU cut into MIG instances is as many devices as instances.
            has_mig = any(gpu.mig for gpu in node.gpu_health)
            if count is not None and node.gpus and not has_mig and count != len(node.gpus):
                yield Sighting(
                    "`gres.conf` lists another number of GPUs than the node has",
                    node.node,
                    (f"{document.file}: {count} GPUs, the node has {len(node.gpus)}",),
                )


def _gpu_lines(gres: SlurmDevices) -> list[tuple[int, frozenset[str]]]:
    """(GPUs, short names of the nodes) of each line about GPUs; no names: of every node."""
    return [
        (line.count, frozenset(short_name(listed) for listed in line.nodes))
        for line in gres.lines
        if line.name.casefold() == "gpu"
    ]


def _configured_gpus(lines: list[tuple[int, frozenset[str]]], node: NodeScan) -> int | None:
    """GPUs that the lines about a node add up to; None where no line is about it."""
    names = aliases(node)
    counts = [count for count, nodes in lines if not nodes or not names.isdisjoint(nodes)]
    return sum(counts) if counts else None


# --- health checks ------------------------------------------------------------------------------------------


def _checks_of(scan: Scan, pattern: re.Pattern[str]) -> Iterator[tuple[Document, NodeScan, re.Match[str]]]:
    """Every check of a sort, with each scanned node that it is for."""
    for document, listed in of_kind(scan, HealthChecks):
        for mask, check in listed.checks:
            match = pattern.match(check)
            if match is not None:
                takes = _taken_by(mask)
                yield from ((document, node, match) for node in scan.nodes if takes(node))


def _taken_by(mask: str) -> Callable[[NodeScan], bool]:
    """Whether a mask of NHC takes in a node: a glob or a `{range}`; a regular expression of a file is not run."""
    if mask.startswith("/"):
        return lambda node: False
    if mask.startswith("{"):
        try:
            names = {short_name(name) for name in expand(mask.strip("{}"))}
        except InputError:
            return lambda node: False
        return lambda node: not names.isdisjoint(aliases(node))
    return lambda node: any(
        fnmatch.fnmatchcase(name, mask) for name in (node.node, node.hostname, short_name(node.node))
    )


def _check_ib(scan: Scan) -> Iterator[Sighting]:
    for document, node, match in _checks_of(scan, _IB_CHECK):
        rate, name, port_number = int(match[1]), match[2], int(match[3] or 1)
        ports = [p for d in node.rdma if d.name == name for p in d.ports if p.port == port_number]
        for port in ports:
            found = []
            if port.state is not None and port.state.casefold() != "active":
                found.append(port.state)
            if port.rate_gbit_per_s is not None and port.rate_gbit_per_s < rate:
                found.append(f"{port.rate_gbit_per_s:g} Gbit/s")
            if found:
                yield Sighting(
                    "an RDMA port is below what the health check list asks for",
                    node.node,
                    (
                        f"{name}:{port_number} is {', '.join(found)}; {document.file} asks for {rate} Gbit/s, active",
                    ),
                )


def _check_gpus(scan: Scan) -> Iterator[Sighting]:
    for document, node, match in _checks_of(scan, _GPU_CHECK):
        if node.gpus and len(node.gpus) != int(match[1]):
            yield Sighting(
                "the node has another number of GPUs than the health check list asks for",
                node.node,
                (f"{len(node.gpus)} GPUs; {document.file} asks for {int(match[1])}",),
            )


# --- traces -------------------------------------------------------------------------------------------------


def _no_sizes(scan: Scan) -> Iterator[Sighting]:
    for document, trace in of_kind(scan, TraceSummary):
        if (trace.kernels or trace.annotations) and not trace.has_message_sizes:
            kernels = sum(count for _, count in trace.kernels)
            yield Sighting(
                "a profiler trace shows collectives without their message sizes",
                evidence=(f"{document.file}: {kernels} NCCL kernels, {trace.annotations} annotations",),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "host-file-lacks-node",
        "a scanned node is not in the host file",
        Severity.NOTICE,
        "jobs that are started with this host file never use it; what was measured on it says nothing about "
        "them",
        ("add it to the host file, or scan without it: `topo-tune scan --exclude NODE`",),
        "https://docs.open-mpi.org/en/v5.0.8/launching-apps/scheduling.html",
        _not_listed,
    ),
    Rule(
        "host-file-node-not-scanned",
        "the host file names nodes that were not scanned",
        Severity.NOTICE,
        "one slow node slows the whole collective, and about these nothing is known",
        ("scan them, too; or remove from the host file what is gone",),
        "https://docs.open-mpi.org/en/v5.0.8/launching-apps/scheduling.html",
        _not_scanned,
    ),
    Rule(
        "host-file-uneven",
        "a host file gives hosts different numbers of ranks",
        Severity.WARNING,
        "NCCL needs as many ranks as GPUs on every node for its rings to be even; two ranks that land on one "
        "GPU fail with `Duplicate GPU detected`",
        ("write each host once, as `HOST slots=GPUS`",),
        "https://github.com/open-mpi/ompi/issues/12574: lines that name a host again add slots",
        _uneven,
    ),
    Rule(
        "inventory-without-hosts",
        "an Ansible inventory has no active host",
        Severity.WARNING,
        "playbooks that set up drivers, fabric or NCCL reach nobody: what this inventory says was deployed, "
        "was not",
        (
            "remove the `#` in front of the hosts",
            "`ansible-inventory -i FILE --graph` shows who is in which group",
        ),
        "https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html",
        _no_hosts,
    ),
    Rule(
        "slurm-gres-gpu-count",
        "`gres.conf` lists another number of GPUs than there are",
        Severity.WARNING,
        "with more than there are Slurm drains the node; with fewer, jobs run on a part of its GPUs, and "
        "NCCL's rings are shorter than the node's NVLink",
        (
            "`nvidia-smi -L` counts them: a GPU that is gone is a matter for `dmesg`, not for `gres.conf`",
            "correct `File=` or `Count=`, or let Slurm count: `AutoDetect=nvml`; then `scontrol reconfigure`",
        ),
        "https://slurm.schedmd.com/gres.conf.html",
        _gres_count,
    ),
    Rule(
        "health-check-ib-rate",
        "an RDMA port is below what the health check list asks for",
        Severity.WARNING,
        "the list says what this kind of machine has: a port below it slows its rail, and NCCL's rings with "
        "it",
        ("`ibstat DEVICE` on the node; reseat or replace the cable", "run the list itself: `nhc -v`"),
        "https://github.com/mej/nhc (check_hw_ib)",
        _check_ib,
    ),
    Rule(
        "health-check-gpu-count",
        "a node has another number of GPUs than the health check list asks for",
        Severity.WARNING,
        "ranks are started for GPUs that are not there, or NCCL runs without some that are",
        (
            "`nvidia-smi -L` and `lspci -d 10de:` on the node; then `dmesg | grep -i xid`",
            "run the list itself: `nhc -v`",
        ),
        "https://github.com/Azure/azurehpc-health-checks (check_gpu_count)",
        _check_gpus,
    ),
    Rule(
        "trace-without-sizes",
        "a profiler trace has no message sizes",
        Severity.NOTICE,
        "which sizes matter decides which setting is best; without them topo-tune weighs all sizes alike",
        (
            "record it again with PyTorch 2.4 or later, CPU and CUDA activities and `record_shapes=True`: "
            "kernels then carry `In msg nelems` and `dtype`",
        ),
        "pytorch/pytorch: torch/csrc/profiler/util.cpp, saveNcclMeta",
        _no_sizes,
    ),
)
