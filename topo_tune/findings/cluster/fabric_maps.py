"""Rules about switches: Slurm's topology as slurmctld would load it, and the links that ibnetdiscover saw."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from topo_tune.findings.node_names import aliases, has_gpus, short_name
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.cluster_documents import FabricMap, FabricSwitch
from topo_tune.records.document import Document
from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan

_GUID = re.compile(r"0x[0-9a-f]{8,16}|[0-9a-f]{16}", re.I)
_SHOWN = 8
_MINORITY = 4
"""One link in so many, or fewer, is an odd one; more of them are how the fabric was built: nodes of two generations."""

_TOPOLOGY_PAGE = "https://slurm.schedmd.com/topology.conf.html"
_TREE_SOURCE = "SchedMD/slurm: src/plugins/topology/tree/switch_record.c, switch_record_validate"
_BLOCK_SOURCE = "SchedMD/slurm: src/plugins/topology/block/block_record.c, block_record_validate"


def _maps(scan: Scan, form: str) -> Iterator[tuple[Document, FabricMap]]:
    """Documents that are fabric maps of a form; `slurm` is each of Slurm's."""
    for document in scan.documents:
        if isinstance(document.body, FabricMap) and document.body.form.startswith(form):
            yield document, document.body


def _shown(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


# --- Slurm --------------------------------------------------------------------------------------------------


def _guids(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm"):
        guids = _guids_of(fabric)
        if guids:
            yield Sighting(
                "the Slurm topology lists InfiniBand GUIDs where Slurm expects the names of nodes",
                evidence=(f"{document.file}: {len(guids)} GUIDs, the first are {_shown(guids[:3])}",),
            )


def _guids_of(fabric: FabricMap) -> list[str]:
    return [node for switch in fabric.switches for node in switch.nodes if _GUID.fullmatch(node)]


def _not_loadable(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm tree"):
        if _guids_of(fabric):  # such a file is no Slurm topology to begin with
            continue
        names = Counter(switch.name for switch in fabric.switches)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            yield Sighting(
                "the Slurm topology defines a switch twice", evidence=(f"{document.file}: {_shown(twice)}",)
            )
        unknown = [
            f"{switch.name} names {child}"
            for switch in fabric.switches
            for child in _children(switch)
            if child not in names
        ]
        if unknown:
            yield Sighting(
                "the Slurm topology names switches that it does not define",
                evidence=(f"{document.file}: {_shown(unknown)}",),
            )
        if loop := _unordered(fabric):
            yield Sighting(
                "the Slurm topology is not a tree: switches are below each other",
                evidence=(f"{document.file}: {_shown(loop)}",),
            )


def _children(switch: FabricSwitch) -> tuple[str, ...]:
    """The switches below, as Slurm takes them: one that has nodes is a leaf."""
    return () if switch.nodes else switch.switches


def _unordered(fabric: FabricMap) -> list[str]:
    """Switches that stand below themselves, and those above them."""
    below = {switch.name: set(_children(switch)) for switch in fabric.switches}
    parents: dict[str, list[str]] = {}
    for name, children in below.items():
        for child in children:
            parents.setdefault(child, []).append(name)
    waiting = {name: sum(child in below for child in children) for name, children in below.items()}
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        for parent in parents.get(ready.pop(), ()):
            waiting[parent] -= 1
            if waiting[parent] == 0:
                ready.append(parent)
    return [name for name, count in waiting.items() if count > 0]


def _empty_switch(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm"):
        empty = [switch.name for switch in fabric.switches if not switch.nodes and not switch.switches]
        if empty:
            thing = "block" if fabric.form == "slurm block" else "switch"
            yield Sighting(
                f"the Slurm topology has a {thing} with nothing below it",
                evidence=(f"{document.file}: {_shown(empty)}",),
            )


def _two_places(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm"):
        places: dict[str, list[str]] = {}
        for switch in fabric.switches:
            for node in switch.nodes:
                places.setdefault(node, []).append(switch.name)
        lines = [f"{node} under {_shown(names)}" for node, names in places.items() if len(names) > 1]
        if lines:
            kind = "blocks" if fabric.form == "slurm block" else "leaf switches"
            yield Sighting(
                f"the Slurm topology puts a node under two {kind}",
                evidence=tuple(f"{document.file}: {line}" for line in lines[:_SHOWN]),
            )


def _block_sizes(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm block"):
        sizes = sorted(fabric.block_sizes)
        if not sizes or sizes[0] < 1:
            continue
        odd = [size for size in sizes if size % sizes[0] or (size // sizes[0]).bit_count() != 1]
        if odd:
            yield Sighting(
                "BlockSizes are not the first size times a power of two",
                evidence=(f"{document.file}: BlockSizes={','.join(map(str, fabric.block_sizes))}",),
            )
        small = [f"{b.name} has {len(b.nodes)}" for b in fabric.switches if 0 < len(b.nodes) < sizes[0]]
        if small:
            yield Sighting(
                "a block has fewer nodes than BlockSizes asks for",
                evidence=(f"{document.file}: {sizes[0]} asked for, {_shown(small)}",),
            )


def _lacks_node(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "slurm"):
        listed = {short_name(node) for switch in fabric.switches for node in switch.nodes}
        known = {node.node: aliases(node) for node in scan.nodes}
        computing = {node.node for node in scan.nodes if has_gpus(node)}
        # Where no node is found by its name, the dump has names of its own and says nothing.
        if not any(names & listed for names in known.values()):
            continue
        for name, names in known.items():
            if not names & listed and name in computing:
                yield Sighting(
                    "a node is in no switch and no block of the Slurm topology",
                    name,
                    (f"not in {document.file}",),
                )


# --- ibnetdiscover ------------------------------------------------------------------------------------------


def _slow_links(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "ibnetdiscover"):
        total = sum(count for _, count in fabric.link_speeds)
        if not fabric.slow_link_count or fabric.slow_link_count * _MINORITY > total:
            continue
        usual = fabric.link_speeds[0][0]
        yield Sighting(
            f"InfiniBand links run slower than others of their sort, most of which run at {usual}",
            evidence=tuple(
                f"{document.file}: {' - '.join(link.ends)} at {link.speed}" for link in fabric.slow_links
            ),
        )


def _unconnected(scan: Scan) -> Iterator[Sighting]:
    for document, fabric in _maps(scan, "ibnetdiscover"):
        # Where it is so many, second ports were never meant to have one.
        if fabric.unconnected and _MINORITY * len(fabric.unconnected) <= fabric.adapters:
            yield Sighting(
                "a port of an InfiniBand adapter has no cable, as most have",
                evidence=tuple(f"{document.file}: {adapter}" for adapter in fabric.unconnected),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "slurm-topology-guids",
        "a Slurm topology lists GUIDs instead of nodes",
        Severity.ERROR,
        "Slurm knows no node by a GUID: it drops them, no node hangs from any switch, and jobs are placed as "
        "if the fabric had no shape, so NCCL's rings cross more switches than they need",
        (
            "make the file from node names: `slurmibtopology.sh` or topograph; SHARP's own file has GUIDs",
            "after `scontrol reconfigure`, `scontrol show topology` must show the nodes",
        ),
        _TOPOLOGY_PAGE,
        _guids,
    ),
    Rule(
        "slurm-topology-not-loadable",
        "slurmctld cannot load a Slurm topology",
        Severity.ERROR,
        "slurmctld stops at such a file when it starts or reconfigures: no job runs, or jobs go on with a "
        "topology that is no longer the fabric's",
        (
            "name every switch once, and list on each line only the switches below it, never the one above",
            "`scontrol reconfigure`, then look for `topology` in slurmctld's log",
        ),
        _TREE_SOURCE,
        _not_loadable,
    ),
    Rule(
        "slurm-switch-empty",
        "a switch of a Slurm topology has nothing below it",
        Severity.WARNING,
        "older slurmctld refuse the whole file for it; newer ones keep an empty leaf, which shows that nodes "
        "were left out and are placed without regard to the fabric",
        (
            "add `Nodes=` or `Switches=` to the line, or remove it",
            "`scontrol show topology` shows what is in force",
        ),
        _TREE_SOURCE,
        _empty_switch,
    ),
    Rule(
        "slurm-node-in-two-places",
        "a node hangs from two leaf switches of a Slurm topology",
        Severity.WARNING,
        "Slurm counts the node under both and may take a job for one that stays under a switch when it does "
        "not; NCCL then crosses the spine; nodes with rails are meant to be listed once, by one rail",
        (
            "leave the node on one line",
            "`scontrol reconfigure`; slurmctld warns of nodes in several leaf switches",
        ),
        _TREE_SOURCE,
        _two_places,
    ),
    Rule(
        "slurm-block-sizes",
        "the blocks of a Slurm topology do not fit BlockSizes",
        Severity.WARNING,
        "depending on the version slurmctld stops, or a job that asks for whole blocks is never placed in "
        "these: the NVLink domain that a block stands for goes unused",
        (
            "set the first of BlockSizes to the nodes of the smallest block, and further ones to 2, 4, 8, ... times it",
            "`scontrol reconfigure`, then `scontrol show topology`",
        ),
        _BLOCK_SOURCE,
        _block_sizes,
    ),
    Rule(
        "slurm-topology-lacks-node",
        "a node is missing in the Slurm topology",
        Severity.WARNING,
        "Slurm cannot place a job with other nodes near it, and some versions never place it together with "
        "the rest; where it does run, NCCL's rings reach it over paths that nobody chose",
        ("add the node to the `Nodes=` of its leaf switch or block", "`scontrol reconfigure`"),
        _TOPOLOGY_PAGE,
        _lacks_node,
    ),
    Rule(
        "ib-links-slower",
        "a few InfiniBand links run slower than the rest",
        Severity.WARNING,
        "a collective runs at the speed of its slowest link, and adaptive routing sends traffic over such a "
        "link, too",
        (
            "`iblinkinfo --line` names both ports; `mlxlink -d DEVICE -p PORT -m` shows speed, width and the cable",
            "reseat or replace the cable, then reset the port: `ibportstate LID PORT reset`",
        ),
        "linux-rdma/rdma-core: infiniband-diags/ibnetdiscover.c, dump_ports_report",
        _slow_links,
    ),
    Rule(
        "ib-adapter-unconnected",
        "a port of an InfiniBand adapter has no cable",
        Severity.NOTICE,
        "if it is a rail's port, NCCL sends this GPU's traffic through another one, which then carries two",
        (
            "`ibstat` on the node: Physical state `Polling` is no cable or no partner, `Disabled` was switched off",
            "if the port is meant to be unused, leave it out: `NCCL_IB_HCA=^DEVICE`",
        ),
        "linux-rdma/rdma-core: infiniband-diags/ibnetdiscover.c, dump_ports_report",
        _unconnected,
    ),
)
