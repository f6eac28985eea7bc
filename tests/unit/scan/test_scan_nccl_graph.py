"""NCCL graph files: real ones of several NCCL versions, and broken ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from broken_texts import broken
from golden_facts import FACTS, SHARED, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.nccl_documents import GraphFile
from topo_tune.scan.documents.nccl_graph import parse, recognise

FOLDER = FACTS / "nccl-graph"
FILES = sorted(FOLDER.glob("*.xml"))
OTHERS = [
    file
    for file in sorted((SHARED if SHARED.is_dir() else FACTS).rglob("*"))
    if file.is_file() and file.parent.name != "nccl-graph"
]
RING = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="1" nchannels="1" speedintra="20" speedinter="10" latencyinter="5"
    typeintra="NVL" typeinter="PXB" samechannels="1">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="a"/><net dev="10"/></channel>
  </graph>
</graphs>
"""


def read(name: str) -> GraphFile:
    body, problems = parse(text_of(FOLDER / name), file=name)
    assert problems == ()
    assert body.refused_by_nccl == ()
    return body


@pytest.mark.parametrize(
    ("name", "ids", "patterns", "channels", "gpus"),
    [
        ("azure-ncv4-4gpu.xml", [0, 1, 2], ["ring", "balanced tree", "tree"], [2, 4, 4], [4, 4, 4]),
        ("azure-nc48v4-2gpu.xml", [0, 1, 2], ["ring", "balanced tree", "tree"], [2, 4, 4], [2, 2, 2]),
        ("msccl-4gpu-old-format.xml", [0, 1, 2], ["ring", "tree", "tree"], [2, 2, 2], [4, 4, 4]),
        (
            "3090-8gpu-1nic.xml",
            [0, 1, 2, 3],
            ["ring", "balanced tree", "tree", "nvls"],
            [1, 1, 0, 0],
            [8, 8, 0, 0],
        ),
        ("modal-b200-hex-dev.xml", [0, 1], ["ring", "balanced tree"], [8, 4], [8, 8]),
    ],
)
def test_graphs_are_counted(
    name: str, ids: list[int], patterns: list[str], channels: list[int], gpus: list[int]
) -> None:
    graphs = read(name).graphs

    assert [graph.id for graph in graphs] == ids
    assert [graph.pattern for graph in graphs] == patterns
    assert [graph.channels for graph in graphs] == channels
    assert [graph.gpus_per_channel for graph in graphs] == gpus


@pytest.mark.parametrize(
    "name", ["azure-ncv4-4gpu.xml", "azure-nc48v4-2gpu.xml", "msccl-4gpu-old-format.xml"]
)
def test_pcie_boxes_have_rings_through_both_sockets(name: str) -> None:
    for graph in read(name).graphs:
        assert (graph.type_intra, graph.type_inter) == ("SYS", "PIX")
        assert (graph.speed_intra_gb_per_s, graph.speed_inter_gb_per_s) == (12, 12)
        assert (graph.nets, graph.is_available, graph.cross_nic) == ((), True, 0)


def test_latency_is_unknown_where_old_versions_do_not_write_it() -> None:
    assert {graph.latency_inter for graph in read("msccl-4gpu-old-format.xml").graphs} == {None}
    assert {graph.latency_inter for graph in read("azure-ncv4-4gpu.xml").graphs} == {0.0}
    assert [graph.latency_inter for graph in read("modal-b200-hex-dev.xml").graphs] == [None, 0.0]


def test_two_gpus_change_places_in_some_channels() -> None:
    tree = read("azure-nc48v4-2gpu.xml").graphs[1]

    assert tree.orders == (
        ("gpu 0", "gpu 1"),
        ("gpu 1", "gpu 0"),
        ("gpu 1", "gpu 0"),
        ("gpu 0", "gpu 1"),
    )


def test_graphs_without_channels_are_not_available() -> None:
    ring, tree, chain, nvls = read("3090-8gpu-1nic.xml").graphs

    assert ring.orders == (("net 0", *(f"gpu {dev}" for dev in range(8)), "net 0"),)
    assert (ring.type_intra, ring.type_inter, ring.speed_intra_gb_per_s) == ("SYS", "SYS", 4)
    assert (ring.nets, ring.is_available, tree.is_available) == (("0",), True, True)
    assert [
        (graph.is_available, graph.type_intra, graph.speed_intra_gb_per_s) for graph in (chain, nvls)
    ] == [
        (False, "LOC", 0.0),
        (False, "LOC", 0.0),
    ]


def test_devices_with_and_without_0x_are_the_same_devices() -> None:
    ring, tree = read("modal-b200-hex-dev.xml").graphs

    assert ring.gpus == tree.gpus == tuple(range(8))
    assert ring.nets == tree.nets == ("8", "9")
    assert (tree.type_inter, tree.speed_intra_gb_per_s, tree.cross_nic) == ("SYS", 45.1, 2)
    assert (ring.type_intra, ring.speed_intra_gb_per_s, ring.speed_inter_gb_per_s) == ("NVL", 160.0, 20.0)


def test_device_numbers_are_hexadecimal_and_lose_the_number_of_their_host() -> None:
    body, _ = parse(RING.replace('<gpu dev="0"/>', '<gpu dev="0x100000000000001" rank="3"/>'))

    assert body.graphs[0].gpus == (1, 10)
    assert body.graphs[0].nets == ("0", "10")
    assert body.graphs[0].has_ranks


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('nchannels="1"', 'nchannels="2"', "line 2: graph 0 says 2 channels and holds 1"),
        (' typeinter="PXB"', "", "line 2: graph 0 has no `typeinter`, which NCCL asks for"),
        ("</channel>", "</channel><channel/>", "line 2: graph 0 has channels of 0 and of 2 GPUs"),
    ],
)
def test_contradictions_are_told(old: str, new: str, problem: str) -> None:
    _, problems = parse(RING.replace(old, new))

    assert problem in problems


def test_a_cut_file_is_read_up_to_its_cut() -> None:
    body, problems = parse(RING[: RING.index("</channel>")])

    assert body.graphs[0].gpus == (0, 10)
    assert problems == ("line 4: the file ends here, before `</graphs>`",)


def test_another_version_is_refused_by_nccl_and_read_here() -> None:
    body, _ = parse(RING.replace('<graphs version="1">', "<graphs>"))

    assert body.refused_by_nccl == ("line 1: version missing, and NCCL takes version 1 only",)
    assert len(body.graphs) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no `<graphs>` element: found `nothing`"),
        ("<graphs/>", "should hold `<graph>` elements, found nothing"),
        ("<graphs><node/></graphs>", "found `<node>`"),
    ],
)
def test_what_holds_no_graph_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_graph_file_is_recognised(file: Path) -> None:
    assert recognise(text_of(file))


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_file_of_another_kind_is_taken_for_graphs(file: Path) -> None:
    assert not recognise(text_of(file)[: 256 << 10])


@pytest.mark.parametrize(
    "text",
    [
        "<graphs>" + "<graph>" * 700_000,
        "<graphs>" + "<graph/>" * 600_000 + "</graphs>",
        "<graphs><graph><channel>" + '<gpu dev="1"/>' * 350_000,
        "<graphs><graph id='" + "9" * 5_000_000 + "'/></graphs>",
    ],
)
def test_five_megabytes_of_nonsense_take_no_time(text: str) -> None:
    start = time.perf_counter()
    try:
        parse(text)
    except InputError:
        pass

    assert time.perf_counter() - start < 2


BROKEN = broken([text_of(file) for file in FILES])


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(BROKEN, st.text(max_size=200), st.text(max_size=60).map(lambda text: f"<graphs><graph>{text}"))
)
def test_any_text_gives_graphs_or_a_reason(text: str) -> None:
    recognise(text)
    try:
        body, _ = parse(text)
    except InputError:
        return

    assert body.graphs
