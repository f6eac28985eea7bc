"""Rules about the error counters of RDMA ports."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from topo_tune.findings.network.rdma_fabric import End, active, twins
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan

_SYSFS = "https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband"
_MLX5 = "https://docs.nvidia.com/networking/display/MLNXOFEDv23100550/InfiniBand+Interface"

_THRESHOLD = 10
"""Errors since the last reset: the value that infiniband-diags' own example of thresholds has for each of these."""
_PHYSICAL = (
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
)

_RETRANSMISSIONS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "out_of_buffer",
)
_FAR_FROM_TWINS = 10.0
"""Times the median of its twins: all ports of a node carry much the same traffic, so they lose much the same."""
_FEWEST = 1000
"""Below this a port is not worth comparing: one lost cable test makes hundreds."""
_PER_PACKET = 1e-4
"""One in ten thousand packets out of order or lost: go-back-N then resends a whole window each time."""


def _physical(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            f"{end.name}: {name} {value}"
            for end in active(node)
            for name, value in end.port.counters
            if name in _PHYSICAL and value > _THRESHOLD
        ]
        if lines:
            yield Sighting("an RDMA port counts errors of its link", node.node, tuple(lines))


def _flapped(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for group in twins(node):
            counts = {
                end.name: dict(end.port.counters).get("link_downed", 0) for end in group if end.is_active
            }
            usual = statistics.median(counts.values()) if counts else 0
            # A switch that restarts takes all ports down together; a cable takes its own.
            odd = {name: count for name, count in counts.items() if count > _THRESHOLD and count > 2 * usual}
            if odd and len(counts) > 1:
                lines = tuple(
                    f"{name}: link_downed {count}, median of its like {usual:g}"
                    for name, count in odd.items()
                )
                yield Sighting(
                    "the link of an RDMA port went down more often than its like", node.node, lines
                )


def _resent(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            line for group in twins(node) for name in _RETRANSMISSIONS for line in _odd_counts(group, name)
        ]
        if lines:
            what = "an RDMA port loses or reorders far more packets than its like"
            yield Sighting(what, node.node, tuple(lines))


def _odd_counts(group: list[End], name: str) -> list[str]:
    counts = {end.name: dict(end.port.counters).get(name) for end in group if end.is_active}
    known = {end: count for end, count in counts.items() if count is not None}
    if len(known) < 3:
        return []
    usual = statistics.median(known.values())
    return [
        f"{end}: {name} {count}, median of its like {usual:g}"
        for end, count in known.items()
        if count >= _FEWEST and count > _FAR_FROM_TWINS * usual
    ]


def _lossy(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = []
        for end in active(node):
            counters = dict(end.port.counters)
            packets, lost = counters.get("port_rcv_packets", 0), counters.get("out_of_sequence", 0)
            if end.is_roce and packets and lost >= _FEWEST and lost > _PER_PACKET * packets:
                lines.append(f"{end.name}: out_of_sequence {lost} of {packets} packets received")
        if lines:
            what = "more than one in ten thousand packets reach a RoCE port out of order"
            yield Sighting(what, node.node, tuple(lines))


def _icrc(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            f"{end.name}: rx_icrc_encapsulated {count}"
            for end in active(node)
            if (count := dict(end.port.counters).get("rx_icrc_encapsulated", 0)) > _THRESHOLD
        ]
        if lines:
            yield Sighting("RoCE packets arrive damaged", node.node, tuple(lines))


RULES: tuple[Rule, ...] = (
    Rule(
        "rdma-link-errors",
        "an RDMA port counts link errors",
        Severity.WARNING,
        "each error costs a retransmission at best and a lost link at worst; NCCL waits for the slowest port "
        "and ends the job when a queue pair gives up",
        (
            "see whether they still grow: read `/sys/class/infiniband/DEVICE/ports/1/counters/` twice under load",
            "clean or replace cable and transceiver: `mlxlink -d DEVICE -m -e` shows signal and bit error rate",
        ),
        "https://man7.org/linux/man-pages/man8/ibqueryerrors.8.html",
        _physical,
    ),
    Rule(
        "rdma-link-flapped",
        "the link of an RDMA port comes and goes",
        Severity.WARNING,
        "a link that goes down while a job runs ends it with a completion error, or stalls it until the "
        "time-out",
        (
            "look for the times: `dmesg -T | grep -i 'link down\\|port_inactive'`",
            "reseat or replace cable and transceiver; `mlxlink -d DEVICE -m -e` shows what the module says",
        ),
        _SYSFS,
        _flapped,
    ),
    Rule(
        "rdma-retransmissions",
        "an RDMA port loses more packets than its like",
        Severity.WARNING,
        "lost and reordered packets are sent again from the first one missing; the channel over this port "
        "falls behind, and every collective waits for it",
        (
            "look at the switch port for drops, and at its priority flow control and ECN settings",
            "compare cable and transceiver with its like: `mlxlink -d DEVICE -m -e`",
        ),
        _MLX5,
        _resent,
    ),
    Rule(
        "roce-out-of-order",
        "packets of RoCE are lost or reordered",
        Severity.NOTICE,
        "out-of-order packets mean drops, or paths that differ in length; with adaptive routing and "
        "selective repeat they cost little; without, each one resends a window",
        (
            "if the fabric does not spread packets on purpose: look for drops on switches, set up priority "
            "flow control and ECN for the traffic class of `NCCL_IB_TC`",
        ),
        _MLX5,
        _lossy,
    ),
    Rule(
        "roce-damaged-packets",
        "packets of RoCE arrive damaged",
        Severity.WARNING,
        "a packet whose invariant checksum is wrong was damaged inside a switch or NIC; it is dropped and "
        "sent again",
        ("find the device on the path that damages them: compare the counter over nodes and switches",),
        _MLX5,
        _icrc,
    ),
)
