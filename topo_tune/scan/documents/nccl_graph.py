"""NCCL graph files: how NCCL lays its channels over GPUs and nets, dumped with NCCL_GRAPH_DUMP_FILE or given to it.

Real ones are in tests/golden/facts/nccl-graph. Device numbers are hexadecimal, with or without `0x`.
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError
from topo_tune.records.document import DocumentBody
from topo_tune.records.nccl_documents import GraphFile, XmlGraph
from topo_tune.scan.documents.xml_elements import Element, begins_with_root, number, read, whole
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped

ROOT = "graphs"
_HINT = "a job writes the graphs of its node with `NCCL_GRAPH_DUMP_FILE=graph.xml`"
_GRAPHS_LIMIT = 32
_CHANNELS_LIMIT = 128
"""NCCL has at most 64 channels."""
_DEVICES_LIMIT = 1024
_LOCAL_NUMBER = (1 << 56) - 1
"""In an NVLink domain of several hosts the host's number stands above it (src/graph/topo.h, NCCL_TOPO_ID)."""
# NVIDIA/nccl: src/include/graph.h, NCCL_TOPO_PATTERN_*.
_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}


def recognise(text: str) -> bool:
    """Whether a text is XML with the root `<graphs>` of NCCL."""
    return begins_with_root(text, ROOT) and re.search(r"<graph\b|<graphs version=", text) is not None


def parse(text: str, *, file: str | None = None) -> tuple[GraphFile, tuple[str, ...]]:
    """What a graph file says, and what in it is cut off or contradicts itself.

    Raises InputError where the text is no XML, or holds no graph.
    """
    xml = read(text, ROOT, file=file)
    elements = xml.root.all("graph")
    if not elements:
        found = f"`<{clipped(xml.root.children[0].name, 30)}>`" if xml.root.children else "nothing"
        raise InputError(
            f"no NCCL graph: `<graphs>` should hold `<graph>` elements, found {found}",
            file=file,
            line=xml.root.line,
            hint=_HINT,
        )
    problems = list(xml.problems)
    if len(elements) > _GRAPHS_LIMIT:
        problems.append(f"{len(elements)} graphs: those after the first {_GRAPHS_LIMIT} are left out")
    graphs = tuple(_graph(element, problems) for element in elements[:_GRAPHS_LIMIT])
    version = _text(xml.root, "version")
    refused = list(xml.refused_by_nccl)
    if whole(version) != 1:
        refused.append(f"line {xml.root.line}: version {version or 'missing'}, and NCCL takes version 1 only")
    return GraphFile(version=version, graphs=graphs, refused_by_nccl=tuple(refused)), tuple(problems)


def document(text: str, file: str) -> tuple[DocumentBody, tuple[str, ...]]:
    """The same, as a `SavedKind` wants it."""
    return parse(text, file=file)


KINDS: tuple[SavedKind, ...] = (SavedKind("NCCL graph file (XML)", recognise, document=document),)


def _graph(graph: Element, problems: list[str]) -> XmlGraph:
    channels = graph.all("channel")
    devices = [device for channel in channels for device in channel.all("gpu", "net")]
    gpus = [device for device in devices if device.name == "gpu"]
    counts = [len(channel.all("gpu")) for channel in channels]
    told = whole(graph.get("nchannels"))
    _tell_contradictions(graph, told, counts, problems)
    pattern = whole(graph.get("pattern"))
    return XmlGraph(
        id=whole(graph.get("id")) or 0,
        pattern=_PATTERNS.get(pattern or 0, clipped(graph.get("pattern") or "unknown", 20)),
        channels=max(0, told) if told is not None else len(channels),
        gpus_per_channel=max(counts, default=0),
        type_intra=_text(graph, "typeintra"),
        type_inter=_text(graph, "typeinter"),
        speed_intra_gb_per_s=number(graph.get("speedintra")),
        speed_inter_gb_per_s=number(graph.get("speedinter")),
        cross_nic=whole(graph.get("crossnic")),
        nets=tuple(dict.fromkeys(_written(net) for net in devices if net.name == "net"))[:_DEVICES_LIMIT],
        gpus=_numbers(gpus),
        orders=tuple(
            tuple(f"{device.name} {_written(device)}" for device in channel.all("gpu", "net"))[
                :_DEVICES_LIMIT
            ]
            for channel in channels[:_CHANNELS_LIMIT]
        ),
        latency_inter=number(graph.get("latencyinter")),
        same_channels=whole(graph.get("samechannels")),
        is_available=bool(channels) and told != 0,
        has_ranks=any(gpu.get("rank") is not None for gpu in gpus),
    )


def _tell_contradictions(graph: Element, told: int | None, counts: list[int], problems: list[str]) -> None:
    name = f"line {graph.line}: graph {clipped(graph.get('id') or '?', 10)}"
    if told is not None and told != len(counts):
        problems.append(f"{name} says {told} channels and holds {len(counts)}")
    if len(set(counts)) > 1:
        problems.append(f"{name} has channels of {min(counts)} and of {max(counts)} GPUs")
    for attribute in ("id", "pattern", "nchannels", "typeintra", "typeinter", "speedintra", "speedinter"):
        if graph.get(attribute) is None:
            problems.append(f"{name} has no `{attribute}`, which NCCL asks for")


def _numbers(gpus: list[Element]) -> tuple[int, ...]:
    numbers = {whole(gpu.get("dev"), 16) for gpu in gpus}
    return tuple(sorted({number & _LOCAL_NUMBER for number in numbers if number is not None}))[
        :_DEVICES_LIMIT
    ]


def _written(device: Element) -> str:
    return clipped(device.get("dev") or "?", 20)


def _text(element: Element, name: str) -> str | None:
    value = element.get(name)
    return clipped(value, 20) if value else None
