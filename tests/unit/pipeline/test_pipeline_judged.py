"""Findings of a scan, and the refusal to measure over broken ground."""

from __future__ import annotations

import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.errors import InputError, Refused
from topo_tune.pipeline.judged import judged, notes_on, refuse_over_errors
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.scan import NcclFile, NcclFileSetting, NodeScan, Scan

BROKEN = Finding("nvlink-down", Severity.ERROR, ("n2",), "an NVLink is down", "slow")
SLOW = Finding("governor", Severity.WARNING, ("n1",), "clocks are low", "slow")
WHOLE = Finding("drift-nccl", Severity.ERROR, (), "nodes differ", "hang")


def with_findings(*findings: Finding) -> Scan:
    return scan_of(node_scan("n1"), node_scan("n2"), findings=findings)


def test_errors_on_measured_nodes_refuse_with_what_to_do() -> None:
    with pytest.raises(Refused) as caught:
        refuse_over_errors(with_findings(BROKEN, SLOW), ["n1", "n2"], doing="measure")

    assert "will not measure: the scan has an error finding" in str(caught.value)
    assert "nvlink-down on n2: an NVLink is down" in str(caught.value)
    assert "--despite-findings" in str(caught.value)


@pytest.mark.parametrize("findings", [(), (SLOW,), (BROKEN,)])
def test_warnings_and_errors_of_other_nodes_do_not(findings: tuple[Finding, ...]) -> None:
    refuse_over_errors(with_findings(*findings), ["n1"], doing="measure")


def test_an_error_about_the_whole_cluster_does() -> None:
    with pytest.raises(Refused, match="on the cluster"):
        refuse_over_errors(with_findings(WHOLE), ["n1"], doing="recommend")


def test_what_was_measured_all_the_same_says_so() -> None:
    assert notes_on(with_findings(BROKEN), ["n2"]) == (
        "measured in spite of an error finding (nvlink-down on n2): an NVLink is down",
    )


def drifted() -> tuple[NodeScan, ...]:
    def file(value: str) -> NcclFile:
        return NcclFile("/etc/nccl.conf", True, None, (NcclFileSetting(1, "NCCL_PROTO", value),))

    return (
        node_scan("n1", nccl_files=(file("Simple"),), gpus=(gpu(0),)),
        node_scan("n2", nccl_files=(file("LL"),)),
    )


def inventory(backend: BackendName) -> Inventory:
    return Inventory(
        "c",
        (
            Rack(
                "r1",
                (Node("n1", "r1", "n1", ConnectionKind.LOCAL), Node("n2", "r1", "n2", ConnectionKind.LOCAL)),
            ),
        ),
        SshOptions(),
        backend,
    )


def test_a_replay_is_judged_by_its_files_and_not_by_this_machine() -> None:
    scan = scan_of(*drifted(), node_scan("n3", driver="570"), node_scan("n4", driver="580"))

    rules = {finding.rule for finding in judged(scan, inventory(BackendName.REPLAY)).findings}

    assert "drift-nccl-conf" in rules
    assert not rules & {"drift-driver", "drift-gpus"}
    assert {"drift-nccl-conf", "drift-driver"} <= {finding.rule for finding in judged(scan).findings}


def test_a_rule_can_be_left_out_and_must_exist() -> None:
    scan = scan_of(*drifted())

    assert "drift-nccl-conf" not in {f.rule for f in judged(scan, ignored=["drift-nccl-conf"]).findings}
    with pytest.raises(InputError, match="no rule is called `drift-ncl-conf`"):
        judged(scan, ignored=["drift-ncl-conf"])
