"""What changed between two scans."""

from __future__ import annotations

import msgspec
import pytest
from report_text import text_of
from scans import gpu, node_scan, scan_of

from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import GpuHealth, Host, PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import Absent, NcclFile, NcclFileSetting
from topo_tune.report.scan_difference import difference_report, readable
from topo_tune.scan.difference import Change, difference

FINDING = Finding("x", Severity.ERROR, ("n1",), "broken", "slow")


def test_a_scan_does_not_differ_from_itself() -> None:
    scan = scan_of(node_scan(gpus=(gpu(0),), driver="580"))

    assert difference(scan, scan).is_empty
    assert "Nothing differs" in text_of(difference_report(difference(scan, scan), old="a", new="b"))


def test_the_same_change_of_many_nodes_is_one() -> None:
    old = scan_of(*(node_scan(f"n{i}", driver="570") for i in range(3)))
    new = scan_of(*(node_scan(f"n{i}", driver="580") for i in range(3)))

    assert difference(old, new).changes == (Change("driver", "570", "580", ("n0", "n1", "n2")),)


def test_members_of_lists_are_told_by_their_names_and_not_by_their_order() -> None:
    def file(path: str, value: str) -> NcclFile:
        return NcclFile(path, True, None, (NcclFileSetting(1, "NCCL_ALGO", value),))

    old = scan_of(node_scan(nccl_files=(file("/a", "Ring"), file("/b", "Ring"))))
    new = scan_of(node_scan(nccl_files=(file("/b", "Tree"), file("/a", "Ring"))))

    (change,) = difference(old, new).changes

    assert change == Change("nccl_files[/b].settings[NCCL_ALGO].value", "Ring", "Tree", ("gpu001",))


def test_a_gpu_that_is_gone_is_one_change() -> None:
    found = difference(scan_of(node_scan(gpus=(gpu(0), gpu(1)))), scan_of(node_scan(gpus=(gpu(0),))))

    (change,) = found.changes
    assert (change.fact, change.after) == ("gpus[1]", None)
    assert change.before is not None
    assert change.before.startswith("1, NVIDIA H100 80GB HBM3, GPU-1, 0000:19:00.0")


def test_a_matrix_on_one_side_is_one_change_and_a_row_has_its_devices_name() -> None:
    def joined(word: str) -> TopologyMatrix:
        links = (("X", word), (word, "X"))
        return TopologyMatrix(("GPU0", "GPU1"), (), links, (None, None), (None, None))

    without, usual, odd = (
        scan_of(node_scan(matrix=matrix)) for matrix in (None, joined("NV18"), joined("NV17"))
    )

    assert difference(without, usual).changes == (Change("matrix", None, "2 GPUs, 0 NICs", ("gpu001",)),)
    assert difference(usual, odd).changes[0] == Change("matrix.links.GPU0", "X NV18", "X NV17", ("gpu001",))


def test_what_nobody_could_see_is_no_fact() -> None:
    old, new = scan_of(node_scan()), scan_of(node_scan(absent=(Absent("NVML", "no pynvml"),)))

    assert difference(old, new).is_empty


def test_a_finding_that_spreads_is_new_on_the_new_nodes_and_gone_nowhere() -> None:
    nodes = (node_scan("n1"), node_scan("n2"), node_scan("n3"))
    old = scan_of(*nodes, findings=(msgspec.structs.replace(FINDING, nodes=("n1", "n3")),))
    new = scan_of(*nodes, findings=(msgspec.structs.replace(FINDING, nodes=("n1", "n2")),))

    found = difference(old, new)

    assert [finding.nodes for finding in found.findings_new] == [("n2",)]
    assert [finding.nodes for finding in found.findings_gone] == [("n3",)]
    assert difference(new, new).is_empty


def test_a_finding_about_no_node_is_compared_too() -> None:
    about_all = msgspec.structs.replace(FINDING, nodes=())

    found = difference(scan_of(findings=()), scan_of(findings=(about_all,)))

    assert found.findings_new == (about_all,)


def test_a_finding_does_not_go_away_with_its_node() -> None:
    found = difference(
        scan_of(node_scan("n1"), node_scan("n2"), findings=(FINDING,)), scan_of(node_scan("n2"))
    )

    assert (found.nodes_gone, found.findings_gone) == (("n1",), ())


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ("driver", "driver"),
        ("gpu_health[0000:18:00.0].link.width", "GPU 0000:18:00.0 link width"),
        ("nccl_files[/etc/nccl.conf].settings[NCCL_ALGO].value", "file /etc/nccl.conf NCCL_ALGO"),
        ("host.transparent_huge_pages", "host transparent huge pages"),
        ("nccl_environment[NCCL_DEBUG]", "environment NCCL_DEBUG"),
        ("gpus[1]", "GPU 1"),
    ],
)
def test_facts_have_names_for_people(fact: str, words: str) -> None:
    assert readable(fact) == words


def test_what_differs_between_any_two_scans_is_no_change() -> None:
    def node(seconds: float, celsius: int, clock: int, speed: float) -> object:
        health = GpuHealth(
            "0000:18:00.0", sm_clock_mhz=clock, temperature_celsius=celsius, link=PcieLink(speed, 32)
        )
        return node_scan(collected_in_seconds=seconds, gpu_health=(health,), host=Host(shm_free_bytes=clock))

    assert difference(scan_of(node(1, 30, 345, 2.5)), scan_of(node(2, 60, 1980, 32.0))).is_empty  # type: ignore[arg-type]


def test_nodes_and_findings_come_and_go() -> None:
    old = scan_of(node_scan("n1"), node_scan("n2"), findings=(FINDING,))
    new = scan_of(
        node_scan("n1"), node_scan("n3"), findings=(msgspec.structs.replace(FINDING, what="worse"),)
    )

    found = difference(old, new)
    text = text_of(difference_report(found, old="a", new="b"))

    assert (found.nodes_gone, found.nodes_new) == (("n2",), ("n3",))
    assert ([f.what for f in found.findings_gone], [f.what for f in found.findings_new]) == (
        ["broken"],
        ["worse"],
    )
    assert "New findings:" in text
    assert "Findings that are gone:" in text
