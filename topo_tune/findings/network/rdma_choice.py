"""Rules about NCCL_IB_HCA: which RDMA devices it names, and whether they are there."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.in_force import NameList, Setting, in_force, name_list
from topo_tune.findings.network.rdma_fabric import active, chosen, compute, ends, may_use_rdma
from topo_tune.findings.network.rdma_ports import down_unlike_twins
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan

_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def _with_list(scan: Scan) -> Iterator[tuple[NodeScan, Setting, NameList]]:
    """Nodes on which the variable names devices to take, and whose devices the scan saw."""
    for node in scan.nodes:
        setting = in_force(node, "NCCL_IB_HCA")
        # EFA and others go by their plugin's own choice.
        if setting is None or not ends(node) or not may_use_rdma(node):
            continue
        names = name_list(setting.value)
        if names.names and not names.is_excluding:
            yield node, setting, names


def _nothing(scan: Scan) -> Iterator[Sighting]:
    for node, setting, names in _with_list(scan):
        devices = [device.name for device in node.rdma]
        if not any(names.takes(name) for name in devices):
            yield Sighting(
                f"`NCCL_IB_HCA={setting.value}` names no RDMA device that is there",
                node.node,
                (str(setting), f"devices: {', '.join(devices)}"),
            )


def _missing(scan: Scan) -> Iterator[Sighting]:
    for node, setting, names in _with_list(scan):
        devices = [device.name for device in node.rdma]
        missing = [
            wanted
            for wanted, _ in names.names
            if not any(d == wanted if names.is_exact else d.startswith(wanted) for d in devices)
        ]
        if missing and len(missing) < len(names.names):
            yield Sighting(
                "`NCCL_IB_HCA` names RDMA devices that are not there",
                node.node,
                (f"not there: {', '.join(missing)}", str(setting)),
            )


def _down(scan: Scan) -> Iterator[Sighting]:
    for node, setting, names in _with_list(scan):
        named = [end for end in ends(node) if names.takes(end.device.name, end.port.port)]
        down = [end for end in named if end.port.state == "Down"]
        told = down_unlike_twins(node)
        # A cable that is off is told as such; here it is about names of ports that nobody expects to be up.
        if not [end for end in down if end not in told]:
            continue
        none_left = len(down) == len(named)
        yield Sighting(
            "every RDMA port that `NCCL_IB_HCA` names is down"
            if none_left
            else "`NCCL_IB_HCA` names an RDMA port that is down",
            node.node,
            (*(end.shown for end in down), str(setting)),
            # A name that was written out is meant; one that a prefix takes along may not be.
            severity=None if none_left or names.is_exact else Severity.WARNING,
        )


def _prefixes(scan: Scan) -> Iterator[Sighting]:
    for node, setting, names in _with_list(scan):
        if names.is_exact:
            continue
        written = {wanted for wanted, _ in names.names}
        there = {end.device.name for end in active(node)}
        # A prefix that is no device's name, like `mlx5`, is meant as one.
        along = [
            f"{wanted} takes {name}"
            for wanted in sorted(written & there)
            for name in sorted(there - written)
            if name.startswith(wanted)
        ]
        if along:
            exact = ",".join(f"{name}:{port}" if port else name for name, port in names.names)
            yield Sighting(
                "`NCCL_IB_HCA` takes more RDMA devices than it names, since names are prefixes without `=`",
                node.node,
                (*along, str(setting)),
                fix=(f"if only those are meant: `NCCL_IB_HCA=={exact}`",),
            )


def _left_out(scan: Scan) -> Iterator[Sighting]:
    for node, setting, _ in _with_list(scan):
        used = compute(node)
        if not used or used[0].port.rate_gbit_per_s is None:
            continue
        taken = {end.name for end in chosen(node)}
        kinds = {(end.port.link_layer, end.device.type, end.port.rate_gbit_per_s) for end in used}
        left = [
            end
            for end in active(node)
            if end.name not in taken
            and not end.device.is_virtual_function
            and (end.port.link_layer, end.device.type, end.port.rate_gbit_per_s) in kinds
        ]
        if left:
            yield Sighting(
                "`NCCL_IB_HCA` leaves out active RDMA ports that are like those it names",
                node.node,
                (*(end.shown for end in left), str(setting)),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "ib-hca-nothing",
        "`NCCL_IB_HCA` names no device of the node",
        Severity.ERROR,
        "NCCL finds no RDMA device and falls back to TCP sockets without a warning",
        ("list the devices: `ibv_devices`; correct the names, or remove the line so that NCCL takes all",),
        _DOCS,
        _nothing,
    ),
    Rule(
        "ib-hca-missing",
        "`NCCL_IB_HCA` names devices that are not there",
        Severity.WARNING,
        "NCCL passes over names that it does not find: the node works with fewer ports than were meant for it",
        (
            "compare with the devices: `ibv_devices`",
            "a card may have been lost (`dmesg`, `lspci`), or numbered anew by a driver update",
        ),
        _DOCS,
        _missing,
    ),
    Rule(
        "ib-hca-down",
        "`NCCL_IB_HCA` names a port that is down",
        Severity.ERROR,
        "NCCL leaves out ports that are not active: the node works with fewer ports than were meant for it, "
        "or none",
        ("look at the link: `ibstat DEVICE`; or take the device out of `NCCL_IB_HCA`",),
        "NVIDIA/nccl: src/transport/net_ib/init.cc",
        _down,
    ),
    Rule(
        "ib-hca-prefix",
        "`NCCL_IB_HCA` takes more devices than it names",
        Severity.NOTICE,
        "without `=` each name is a prefix: `mlx5_1` takes `mlx5_10` and `mlx5_11`, too",
        ("write `NCCL_IB_HCA==name,name` to take exactly these",),
        _DOCS,
        _prefixes,
    ),
    Rule(
        "ib-hca-leaves-out",
        "`NCCL_IB_HCA` leaves out ports like those it names",
        Severity.NOTICE,
        "ports that NCCL may not use are bandwidth that no collective gets; they may be kept for storage on "
        "purpose",
        ("if they are meant for jobs: add them to `NCCL_IB_HCA`",),
        _DOCS,
        _left_out,
    ),
)
