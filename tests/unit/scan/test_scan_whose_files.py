"""Which node a saved file belongs to, in the layouts in which people send dumps."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from golden_facts import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_answers import MATRIX, QUERY

from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.file_names import is_of, stem
from topo_tune.scan.from_files import scan_from
from topo_tune.scan.saved_file import Output, SavedFile
from topo_tune.scan.whose import by_node

IBSTAT = (FACTS / "ib/ibstat-h100-2-of-8-down.txt").read_text()
CONF = "NCCL_ALGO=Ring\n"
LOG = "n1:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"

TEXTS = {"topo": MATRIX, "query": QUERY, "ibstat": IBSTAT, "nccl": CONF, "log": LOG}


def dump(folder: Path, *names: str) -> Path:
    """Files whose last part begins or ends with the tool that they hold, or that lie in a folder called like it."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        tool = next(tool for tool in TEXTS if tool in file.name or tool in file.parent.name)
        file.write_text(TEXTS[tool])
    return folder


def facts(folder: Path) -> dict[str, set[str]]:
    """Node to the tools that told something of it."""
    return {
        node.node: {
            tool
            for tool, is_there in (
                ("topo", node.matrix is not None),
                ("query", bool(node.gpus)),
                ("ibstat", bool(node.rdma)),
                ("nccl", bool(node.nccl_files)),
            )
            if is_there
        }
        for node in scan_from(folder).nodes
    }


@pytest.mark.parametrize("above", ["", "dump/", "a/b/dump-2025-03-11/"])
def test_a_folder_for_each_node_however_deep_it_is_wrapped(above: str, tmp_path: Path) -> None:
    names = [f"{above}{node}/{tool}.txt" for node in ("gpu002", "gpu003") for tool in ("topo", "query")]

    assert facts(dump(tmp_path, *names, f"{above}job-log.txt")) == {
        "gpu002": {"topo", "query"},
        "gpu003": {"topo", "query"},
    }


def test_racks_are_no_nodes_and_the_same_name_in_two_racks_is_two_nodes(tmp_path: Path) -> None:
    folder = dump(
        tmp_path,
        "rack1/gpu001/topo.txt",
        "rack1/gpu002/topo.txt",
        "rack2/gpu001/topo.txt",
        "rack2/gpu001/query.txt",
    )

    assert facts(folder) == {"gpu002": {"topo"}, "rack1/gpu001": {"topo"}, "rack2/gpu001": {"topo", "query"}}


def test_nodes_that_tell_different_things_are_still_two_nodes(tmp_path: Path) -> None:
    assert facts(dump(tmp_path, "gpu001/topo.txt", "gpu002/ibstat.txt")) == {
        "gpu001": {"topo"},
        "gpu002": {"ibstat"},
    }


@pytest.mark.parametrize(
    "parts",
    [
        ("topo.txt", "etc/nccl.conf", "logs/log.txt", "ib/ibstat.txt"),
        ("cmd/topo", "etc/nccl.conf", "ib/ibstat"),
        ("topo.txt", "saved/nccl.conf", "mlx5_0/ibstat.txt"),
        ("out/cmds/topo", "out/etc/nccl/nccl.conf", "sos_commands/infiniband/ibstat"),
    ],
)
def test_folders_inside_of_a_nodes_folder_are_parts_of_the_node(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    names = [f"{node}/{part}" for node in ("gpu001", "gpu002") for part in parts]
    expected = {"topo", "nccl", "ibstat"}

    assert facts(dump(tmp_path / "both", *names)) == {"gpu001": expected, "gpu002": expected}
    assert facts(dump(tmp_path / "one", *names[: len(parts)])) == {"gpu001": expected}
    assert facts(dump(tmp_path / "gpu7", *parts)) == {"gpu7": expected}


@pytest.mark.parametrize("above", ["", "dump/"])
def test_a_folder_for_each_tool_holds_a_file_for_each_node(above: str, tmp_path: Path) -> None:
    names = [f"{above}{tool}/{node}.txt" for node in ("gpu001", "gpu002") for tool in ("topo", "ibstat")]

    assert facts(dump(tmp_path, *names, f"{above}query/gpu001.txt")) == {
        "gpu001": {"topo", "ibstat", "query"},
        "gpu002": {"topo", "ibstat"},
    }


def test_host_names_with_domains_are_whole_names(tmp_path: Path) -> None:
    names = [f"{tool}_node-{n}.cluster.example.com" for n in ("001", "002") for tool in ("topo", "query")]

    assert facts(dump(tmp_path, *names)) == {
        f"node-{n}.cluster.example.com": {"topo", "query"} for n in ("001", "002")
    }


def test_a_flat_dump_in_a_folder_of_a_folder_is_sorted_by_names(tmp_path: Path) -> None:
    names = [f"dump/{node}-{tool}.txt" for node in ("gpu001", "gpu002") for tool in ("topo", "query")]

    assert facts(dump(tmp_path, *names)) == {"gpu001": {"topo", "query"}, "gpu002": {"topo", "query"}}


def test_outputs_of_two_moments_are_of_one_node_and_the_second_is_left_out(tmp_path: Path) -> None:
    folder = dump(tmp_path, *(f"gpu{n}/topo-{when}.txt" for n in (1, 2) for when in ("before", "after")))

    nodes = scan_from(folder).nodes

    assert [node.node for node in nodes] == ["gpu1", "gpu2"]
    assert ("gpu1/topo-before.txt", "left out: this node has one already, from gpu1/topo-after.txt") in [
        (absent.what, absent.reason) for absent in nodes[0].absent
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dump/gpu001.txt.gz", "gpu001"),
        ("topo_node-001.cluster.example.com", "topo_node-001.cluster.example.com"),
        ("gpu001.TXT", "gpu001"),
        ("nccl.conf", "nccl"),
        (".nccl.conf", ".nccl"),
        (".env", ".env"),
        ("gres.conf.j2", "gres"),
    ],
)
def test_only_endings_of_kinds_of_files_are_no_part_of_the_name(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_a_name_is_a_nodes_where_it_begins_or_ends_with_it() -> None:
    assert is_of("gpu003.gpus", "gpu003")
    assert is_of("gpus-gpu003", "gpu003")
    assert not is_of("gpu0031", "gpu003")
    assert not is_of("xgpu003", "gpu003")


TOOLS = {
    name: SavedKind(name, lambda _: True, tell=lambda scan, *_: scan, is_repeatable=name == "conf")
    for name in ("topo", "query", "conf")
}
PARTS = st.sampled_from(["n1", "n2", "gpu-a", "etc", "logs", "rack1", "topo", "x"])
PLACES = st.lists(PARTS, min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(PLACES, st.sampled_from([*TOOLS, None])), max_size=12), st.sampled_from(["d", None])
)
def test_every_file_is_one_nodes_or_nobodys(
    files: list[tuple[list[str], str | None]], folder: str | None
) -> None:
    given_files = [
        SavedFile(f"{'/'.join(place)}-{number}.txt", (Output("", "", TOOLS[tool]),) if tool else ())
        for number, (place, tool) in enumerate(files)
    ]

    found = by_node(given_files, folder=folder)

    told = [file.name for own in found.nodes.values() for file in own] + [file.name for file in found.others]
    assert sorted(told) == sorted(file.name for file in given_files)


def test_a_tree_and_a_list_of_pci_devices_are_of_one_node(tmp_path: Path) -> None:
    texts = {"tv": "lspci-tv-2socket-4gpu.txt", "nn": "lspci-nn-a100.txt"}
    for node, name in itertools.product(("n1", "n2"), texts):
        (tmp_path / node).mkdir(exist_ok=True)
        (tmp_path / node / f"lspci-{name}.txt").write_text((FACTS / "lspci" / texts[name]).read_text())

    found = scan_from(tmp_path)

    assert [node.node for node in found.nodes] == ["n1", "n2"]
    assert not any("left out" in absent.reason for node in found.nodes for absent in node.absent)
