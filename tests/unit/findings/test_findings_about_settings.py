"""What is found about variables that are set, and about NCCL's libraries and plugins."""

from __future__ import annotations

from typing import Any

import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.findings.judge import find
from topo_tune.findings.settings import RULES
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import Absent, NcclLibrary, NcclPlugin, Nic, NodeScan, Scan
from topo_tune.scan.facts.nccl import nccl_files
from topo_tune.scan.provenance import with_settings

SYSTEM, HOME = "/etc/nccl.conf", "/root/.nccl.conf"
DROP_IN = "/etc/nccl/conf.d/50-topo-tune.conf"
EIGHT = tuple(gpu(index) for index in range(8))
NAMES = ("NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_DEBUG", "NCCL_NET", "NCCL_SOCKET_IFNAME")
ACCEPTS = ("ncclNetPlugin_v11", "ncclNetPlugin_v10", "ncclTunerPlugin_v5", "ncclTunerPlugin_v4")
LIBRARY = NcclLibrary("/venv/nvidia/nccl/lib/libnccl.so.2", "2.28.9", "pip", NAMES, ACCEPTS)
INFINIBAND = Nic("mlx5_0", "infiniband", True, 400.0, 0, "mlx5_core")
EFA = RdmaDevice("rdmap0", (), driver="efa")


def matrix(*, link: str, gpus: int = 2) -> TopologyMatrix:
    names = tuple(f"GPU{index}" for index in range(gpus))
    rows = tuple(tuple("X" if i == j else link for j in range(gpus)) for i in range(gpus))
    nothing = ("",) * gpus
    return TopologyMatrix(names, (), rows, nothing, nothing, nothing)


def node(
    name: str = "gpu001",
    *others: SettingOrigin,
    environment: dict[str, str] | None = None,
    files: dict[str, str] | None = None,
    **changes: Any,
) -> NodeScan:
    """A node whose settings are worked out from what is in its environment, its files and elsewhere."""
    scan = node_scan(
        name,
        nccl_environment=tuple((environment or {}).items()),
        nccl_files=tuple(nccl_files.parse(text, path=path) for path, text in (files or {}).items()),
        **changes,
    )
    return with_settings(scan, others)


def told(*arguments: Any, **keywords: Any) -> Scan:
    return scan_of(node(*arguments, **keywords))


def conf(text: str, **changes: Any) -> Scan:
    return told(files={SYSTEM: text}, **changes)


def elsewhere(value: str, layer: Layer = Layer.PROFILE) -> SettingOrigin:
    return SettingOrigin("NCCL_ALGO", value, layer, Reach.DEPENDS, "/etc/profile.d/nccl.sh", 3)


def naming(name: str, *, is_there: bool | None) -> Scan:
    return scan_of(
        node_scan(
            settings=(
                SettingOrigin(
                    name, "/opt/a.xml", Layer.SYSTEM_FILE, Reach.WINS, SYSTEM, 1, file_exists=is_there
                ),
            )
        )
    )


def plugin(kind: str = "net", found_in: str = "system", **changes: Any) -> NcclPlugin:
    given = {"path": f"/usr/lib/libnccl-{kind}.so", "interfaces": ("ncclNetPlugin_v10",)}
    return NcclPlugin(kind, found_in=found_in, **(given | changes))


def with_library(**changes: Any) -> Scan:
    return told(**({"nccl_libraries": (LIBRARY,), "torch_nccl": "2.28.9"} | changes))


NVLINK = {"gpus": EIGHT, "matrix": matrix(link="NV18", gpus=8)}
PCIE = {"gpus": (gpu(0), gpu(1)), "matrix": matrix(link="PHB")}
RACK = {"gpus": (gpu(0, name="NVIDIA GB200"),)}

FIRES: dict[str, Scan] = {
    "setting-hidden": told(files={HOME: "NCCL_ALGO=Tree\n", SYSTEM: "NCCL_ALGO=Ring\n"}),
    "setting-may-be-hidden": told("gpu001", elsewhere("Tree"), files={SYSTEM: "NCCL_ALGO=Ring\n"}),
    "setting-twice": conf("NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n"),
    "setting-drop-in-unread": told(files={SYSTEM: "NCCL_NET=IB\n", DROP_IN: "NCCL_ALGO=Ring\n"}),
    "setting-conf-file-missing": told(environment={"NCCL_CONF_FILE": "~/nccl.conf"}),
    "setting-conf-file-in-file": conf("NCCL_CONF_FILE=/opt/a.conf\n"),
    "setting-file-missing": naming("NCCL_TOPO_FILE", is_there=False),
    "setting-template": conf("NCCL_NET_PLUGIN={{hpcx_path}}/lib/libnccl-net.so\n"),
    "setting-misread": conf("NCCL_BUFFSIZE=4M\n"),
    "setting-unread-name": conf("NCCL_ALGOS=Ring\n", nccl_libraries=(LIBRARY,)),
    "setting-wrong-name": conf("NCCL_BUFFER_SIZE=8388608\n"),
    "setting-lint-error": conf("NCCL_IB_TIMOUT=3\n"),
    "override-debug-log": conf("NCCL_DEBUG=INFO\n"),
    "override-p2p-off": conf("NCCL_P2P_DISABLE=1\n", **NVLINK),
    "override-shm-off": conf("NCCL_SHM_DISABLE=1\n", **PCIE),
    "override-sockets": conf("NCCL_IB_DISABLE=1\n", nics=(INFINIBAND,)),
    "override-forced-choice": conf("NCCL_ALGO=Ring\n"),
    "override-tree-for-all": conf("NCCL_ALGO=Tree\n", torch_nccl="2.28.9"),
    "override-ll128": conf("NCCL_PROTO=LL128,Simple\n", **PCIE),
    "override-gpudirect-off": conf("NCCL_NET_GDR_LEVEL=LOC\n", nics=(INFINIBAND,)),
    "override-rack-nvlink-off": conf("NCCL_CUMEM_ENABLE=0\n", **RACK),
    "override-nvls-off": conf("NCCL_NVLS_ENABLE=0\n", **NVLINK),
    "override-few-channels": conf("NCCL_MAX_NCHANNELS=2\n", **NVLINK),
    "nccl-absent": told(gpus=EIGHT, gpu_source="nvml"),
    "nccl-versions-differ": with_library(
        nccl_libraries=(LIBRARY, NcclLibrary("/usr/lib/libnccl.so.2", "2.21.5", "system"))
    ),
    "nccl-library-path": with_library(
        nccl_libraries=(LIBRARY, NcclLibrary("/opt/nccl/lib/libnccl.so.2", "2.21.5", "LD_LIBRARY_PATH"))
    ),
    "nccl-older-than-gpus": told(gpus=(gpu(0, compute_capability="10.0"),), torch_nccl="2.21.5"),
    "plugin-missing": told(
        plugins=(plugin("tuner", "NCCL_TUNER_PLUGIN", path="aws", exists=False, interfaces=()),)
    ),
    "plugin-refused": with_library(plugins=(plugin(interfaces=("ncclNetPlugin_v12",)),)),
    "plugin-efa-absent": with_library(rdma=(EFA,)),
    "plugin-network-absent": with_library(environment={"NCCL_NET": "AWS Libfabric"}),
    "plugin-unused": told(environment={"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "ofi"}),
}
QUIET: dict[str, Scan] = {
    # The same value in both places hides nothing.
    "setting-hidden": told(files={HOME: "NCCL_ALGO=Ring\n", SYSTEM: "NCCL_ALGO=Ring\n"}),
    "setting-may-be-hidden": told("gpu001", elsewhere("Ring"), files={SYSTEM: "NCCL_ALGO=Ring\n"}),
    "setting-twice": told(files={HOME: "NCCL_ALGO=Ring\n", SYSTEM: "NCCL_ALGO=Tree\n"}),
    # Merged by topo-tune.
    "setting-drop-in-unread": told(files={SYSTEM: "NCCL_ALGO=Ring\n", DROP_IN: "NCCL_ALGO=Ring\n"}),
    "setting-conf-file-missing": told(
        environment={"NCCL_CONF_FILE": "/opt/a.conf"}, files={"/opt/a.conf": "NCCL_ALGO=Ring\n"}
    ),
    "setting-conf-file-in-file": conf("# NCCL_CONF_FILE=/opt/a.conf\n"),
    "setting-file-missing": naming("NCCL_TOPO_FILE", is_there=None),
    # A shell expands it before anybody reads it.
    "setting-template": told("gpu001", elsewhere("$WHATEVER")),
    # `==` names devices exactly.
    "setting-misread": conf("NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_BUFFSIZE=4194304\n"),
    # Not NCCL's own, and read by a plugin.
    "setting-unread-name": conf("NCCL_FASTRAK_IFNAME=eth1\n", nccl_libraries=(LIBRARY,)),
    "setting-wrong-name": conf("NCCL_BUFFSIZE=8388608\n"),
    # A plugin's own, and what lint only warns of.
    "setting-lint-error": conf("NCCL_FASTRAK_IFNAME=eth1\nNCCL_IB_TC=106\nNCCL_IB_TC=0\n"),
    "override-debug-log": conf("NCCL_DEBUG=WARN\n"),
    "override-p2p-off": conf("NCCL_P2P_DISABLE=0\n", **NVLINK),
    # Microsoft's own profile for GB200.
    "override-shm-off": conf("NCCL_SHM_DISABLE=1\n", **RACK),
    # The plugin carries the traffic.
    "override-sockets": conf("NCCL_IB_DISABLE=1\n", nics=(INFINIBAND,), plugins=(plugin(),)),
    "override-forced-choice": conf("NCCL_ALGO=allreduce:ring\n"),
    "override-tree-for-all": conf("NCCL_ALGO=Tree\n", torch_nccl="2.21.5"),
    "override-ll128": conf("NCCL_PROTO=^LL128\n", **PCIE),
    "override-gpudirect-off": conf("NCCL_NET_GDR_LEVEL=SYS\n", nics=(INFINIBAND,)),
    "override-rack-nvlink-off": conf("NCCL_CUMEM_ENABLE=0\n", **NVLINK),
    # GPUs without NVSwitches have no NVLink SHARP to turn off.
    "override-nvls-off": conf("NCCL_NVLS_ENABLE=0\n", **PCIE),
    "override-few-channels": conf("NCCL_MAX_NCHANNELS=32\n", **NVLINK),
    "nccl-absent": told(gpus=EIGHT, gpu_source="nvml", absent=(Absent("NCCL libraries", "not in files"),)),
    "nccl-versions-differ": with_library(
        nccl_libraries=(LIBRARY, NcclLibrary("/usr/lib/libnccl.so.2", "2.28.9", "system"))
    ),
    "nccl-library-path": with_library(
        nccl_libraries=(LIBRARY, NcclLibrary("/opt/nccl/lib/libnccl.so.2", "2.28.9", "LD_LIBRARY_PATH"))
    ),
    "nccl-older-than-gpus": told(gpus=(gpu(0, compute_capability="10.0"),), torch_nccl="2.25.1"),
    "plugin-missing": told(plugins=(plugin("tuner", "NCCL_TUNER_PLUGIN"),)),
    # A newer plugin that still speaks the older interface, too.
    "plugin-refused": with_library(plugins=(plugin(interfaces=("ncclNetPlugin_v12", "ncclNetPlugin_v11")),)),
    "plugin-efa-absent": with_library(rdma=(EFA,), plugins=(plugin(),)),
    "plugin-network-absent": with_library(environment={"NCCL_NET": "AWS Libfabric"}, plugins=(plugin(),)),
    "plugin-unused": told(environment={"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "ofi"}),
}


def found(scan: Scan, rule: str) -> Finding:
    (finding,) = find(scan, rules=[each for each in RULES if each.id == rule])
    return finding


def found_ids(scan: Scan) -> list[str]:
    return [finding.rule for finding in find(scan, rules=RULES)]


def test_a_healthy_node_has_no_finding() -> None:
    scan = with_library(**NVLINK, nics=(INFINIBAND,), files={SYSTEM: "NCCL_SOCKET_IFNAME=eth0\n"})

    assert found_ids(scan) == []


def test_a_node_of_which_nothing_is_known_has_no_finding() -> None:
    assert found_ids(scan_of(node_scan())) == []


def test_what_is_hidden_is_shown_with_what_hides_it() -> None:
    finding = found(FIRES["setting-hidden"], "setting-hidden")

    assert finding.severity is Severity.WARNING
    assert finding.what == (
        "`NCCL_ALGO` of `/etc/nccl.conf` has no effect: `/root/.nccl.conf` sets another value and goes before it"
    )
    assert finding.evidence == ("NCCL_ALGO=Tree (/root/.nccl.conf:1)", "NCCL_ALGO=Ring (/etc/nccl.conf:1)")


def test_the_same_trouble_on_many_nodes_is_one_finding() -> None:
    files = {HOME: "NCCL_ALGO=Tree\n", SYSTEM: "NCCL_ALGO=Ring\n"}

    finding = found(scan_of(*(node(name, files=files) for name in ("n1", "n2", "n3"))), "setting-hidden")

    assert finding.nodes == ("n1", "n2", "n3")


def test_a_repeated_line_with_the_same_value_is_only_worth_knowing() -> None:
    assert found(conf("NCCL_ALGO=Ring\nNCCL_ALGO=Ring\n"), "setting-twice").severity is Severity.NOTICE


def test_a_file_whose_place_is_not_known_is_read_line_by_line_all_the_same() -> None:
    finding = found(told(files={"saved/site.conf": "NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n"}), "setting-twice")

    assert finding.what == (
        "`saved/site.conf` sets `NCCL_ALGO` more than once with different values; the first counts"
    )


@pytest.mark.parametrize("layer", [Layer.UNPLACED_FILE, Layer.LAUNCHER])
def test_what_one_job_or_another_file_sets_may_differ(layer: Layer) -> None:
    scan = told("gpu001", elsewhere("Tree", layer), files={SYSTEM: "NCCL_ALGO=Ring\n"})

    assert "setting-may-be-hidden" not in found_ids(scan)


def test_a_graph_file_that_is_not_there_ends_jobs() -> None:
    assert found(naming("NCCL_GRAPH_FILE", is_there=False), "setting-file-missing").severity is Severity.ERROR


def test_a_conf_file_that_does_not_exist_is_a_warning() -> None:
    missing = nccl_files.parse("", path="/opt/a.conf")
    scan = scan_of(
        node_scan(
            nccl_environment=(("NCCL_CONF_FILE", "/opt/a.conf"),),
            nccl_files=(type(missing)("/opt/a.conf", False, None),),
        )
    )

    finding = found(scan, "setting-conf-file-missing")

    assert (finding.severity, finding.evidence) == (Severity.WARNING, ("NCCL_CONF_FILE=/opt/a.conf",))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('NCCL_ALGO="Ring"', "the quotes become"),
        ("NCCL_ALGO =Ring", "space around the name"),
        ("NCCL_ALGO= Ring", "space before the value"),
        ("export NCCL_ALGO=Ring", "a part of the name"),
        ("NCCL_IB_TC=0106", "octal"),
        ("NCCL_ALGO=Ring # fast", "no comments behind a value"),
    ],
)
def test_each_way_of_misreading_a_line_is_evidence(line: str, problem: str) -> None:
    (evidence,) = found(conf(line + "\n"), "setting-misread").evidence

    assert evidence.startswith("/etc/nccl.conf: line 1:")
    assert problem in evidence


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("NCCL_IB_TIMOUT=3", ["setting-lint-error"]),
        ("NCCL_ALGO=Foo", ["setting-lint-error"]),
        ("NCCL_IB_TIMEOUT=99", ["setting-lint-error"]),
        ("nccl_algo=Ring", ["setting-lint-error"]),
        ("NCCL_ALGO=Tree", ["setting-lint-error"]),
        ("NCCL_BUFFSIZE=4M", ["setting-misread"]),
        ("NCCL_BUFFER_SIZE=8388608", ["setting-wrong-name"]),
        ("NCCL_NET_PLUGIN={{hpcx}}", ["setting-template"]),
    ],
)
def test_a_line_that_is_wrong_is_told_once(line: str, rules: list[str]) -> None:
    assert found_ids(conf(line + "\n")) == rules


@pytest.mark.parametrize("line", ["NCCL_ALGOS=Ring", "NCCL_ALGO=Tree"])
def test_what_the_nodes_own_nccl_tells_of_a_line_is_not_told_again(line: str) -> None:
    assert "setting-lint-error" not in found_ids(with_library(files={SYSTEM: line + "\n"}))


def test_an_error_of_a_file_is_shown_with_its_line() -> None:
    finding = found(conf("NCCL_DEBUG=WARN\nNCCL_ALGO=Foo\n"), "setting-lint-error")

    assert finding.severity is Severity.WARNING
    assert finding.what == "settings of `/etc/nccl.conf` do not do what they were meant for"
    assert finding.evidence == (
        "/etc/nccl.conf:2: `foo` is no word of `NCCL_ALGO`: communicators fail to start",
    )


def test_a_script_that_was_saved_beside_is_no_file_of_nccls() -> None:
    scan = told(files={"dump/hopper.env": "export NCCL_ALGO=Ring\nexport NCCL_PROTO=LL\n"})

    assert "setting-misread" not in found_ids(scan)


def test_what_a_shell_would_expand_in_a_saved_script_is_no_placeholder() -> None:
    scan = told(files={"dump/hopper.env": "export NCCL_P2P_NET_CHUNKSIZE=$((2 * 1024))\n"})

    assert "setting-template" not in found_ids(scan)


def test_a_name_that_no_library_knows_is_told_with_the_nearest_one() -> None:
    what = found(FIRES["setting-unread-name"], "setting-unread-name").what

    assert what == "no NCCL on the node knows `NCCL_ALGOS`: it has no effect; `NCCL_ALGO` may be meant"


def test_without_a_library_the_catalogue_says_which_version_reads_a_name() -> None:
    old = found(conf("NCCL_CONF_FILE=x\nNCCL_RINGS=0 1\n", torch_nccl="2.28.9"), "setting-unread-name")
    new = found(conf("NCCL_NO_CACHE=ALL\n", torch_nccl="2.21.5"), "setting-unread-name")

    assert old.what == "`NCCL_RINGS` has no effect on this NCCL: the last version that read it was 2.4"
    assert new.what == "`NCCL_NO_CACHE` has no effect on this NCCL: it is read from version 2.29.7 on"


def test_a_name_that_a_plugin_holds_is_read_by_it() -> None:
    scan = conf("NCCL_MY_OWN=1\n", nccl_libraries=(LIBRARY,), plugins=(plugin(names=("NCCL_MY_OWN",)),))

    assert "setting-unread-name" not in found_ids(scan)


def test_what_an_image_leaves_for_builds_is_no_setting() -> None:
    environment = {"NCCL_VERSION": "2.28.3-1", "NCCL_HOME": "/opt/nccl", "NCCL_LIB_DIR": "/opt/nccl/lib"}

    assert found_ids(with_library(environment=environment)) == []


def test_an_old_name_that_torch_reads_is_only_worth_knowing() -> None:
    finding = found(conf("NCCL_ASYNC_ERROR_HANDLING=1\n"), "setting-wrong-name")

    assert finding.severity is Severity.NOTICE
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in finding.what


def test_trace_logs_cost_more_than_info() -> None:
    assert found(conf("NCCL_DEBUG=trace\n"), "override-debug-log").severity is Severity.WARNING


def test_direct_traffic_off_over_nvlink_is_an_error_and_over_pcie_a_warning() -> None:
    assert found(conf("NCCL_P2P_DISABLE=1\n", **NVLINK), "override-p2p-off").severity is Severity.ERROR
    assert found(conf("NCCL_P2P_LEVEL=LOC\n", **PCIE), "override-p2p-off").severity is Severity.WARNING


def test_sockets_over_infiniband_are_an_error_and_over_roce_a_warning() -> None:
    roce = Nic("mlx5_0", "roce", True, 25.0, 0, "mlx5_core")

    assert found(FIRES["override-sockets"], "override-sockets").severity is Severity.ERROR
    assert found(conf("NCCL_NET=Socket\n", nics=(roce,)), "override-sockets").severity is Severity.WARNING


def test_sockets_are_right_where_no_rdma_port_is_up() -> None:
    down = RdmaDevice("mlx5_0", (RdmaPort(1, state="DOWN"),), driver="mlx5_core")

    assert found_ids(conf("NCCL_IB_DISABLE=1\n", rdma=(down,))) == []


@pytest.mark.parametrize("value", ["LL128", "ll,ll128,simple", "^LL", "allreduce:LL128"])
def test_ll128_is_forced_on_by_naming_it_and_by_excluding_only_others(value: str) -> None:
    assert found(conf(f"NCCL_PROTO={value}\n", **PCIE), "override-ll128").severity is Severity.ERROR


@pytest.mark.parametrize("value", ["Simple", "^LL128", "^LL,LL128", "allreduce:^ll128"])
def test_ll128_is_not_forced_on_by_leaving_it_out(value: str) -> None:
    assert "override-ll128" not in found_ids(conf(f"NCCL_PROTO={value}\n", **PCIE))


def test_ll128_over_nvlink_may_be_safe() -> None:
    assert found(conf("NCCL_PROTO=LL128\n", **NVLINK), "override-ll128").severity is Severity.NOTICE


def test_a_forced_value_is_told_by_the_rule_that_knows_it_best() -> None:
    assert "override-forced-choice" not in found_ids(conf("NCCL_PROTO=LL128\n", **PCIE))
    assert "override-forced-choice" not in found_ids(conf("NCCL_ALGO=Tree\n", torch_nccl="2.28.9"))
    assert "override-forced-choice" in found_ids(conf("NCCL_ALGO=Tree\n", torch_nccl="2.18.6"))
    assert "override-forced-choice" not in found_ids(conf("NCCL_PROTO=LL,Simple\n"))


def test_ring_beside_tree_leaves_every_collective_an_algorithm() -> None:
    assert "override-tree-for-all" not in found_ids(conf("NCCL_ALGO=Tree,Ring\n", torch_nccl="2.28.9"))


def test_a_missing_net_plugin_is_an_error_where_the_network_needs_it() -> None:
    missing = plugin("net", "NCCL_NET_PLUGIN", path="ofi", exists=False, interfaces=())

    assert found(told(plugins=(missing,)), "plugin-missing").severity is Severity.WARNING
    assert found(told(plugins=(missing,), rdma=(EFA,)), "plugin-missing").severity is Severity.ERROR


def test_a_plugin_in_a_usual_folder_is_a_hint_for_an_efa_node() -> None:
    finding = found(
        with_library(rdma=(EFA,), plugins=(plugin(found_in="usual folder"),)), "plugin-efa-absent"
    )

    assert finding.severity is Severity.NOTICE
    assert finding.evidence == ("found, on no library path: /usr/lib/libnccl-net.so",)


def test_a_plugin_that_nobody_loads_is_not_judged() -> None:
    unused = plugin(path="/opt/x/libnccl-net-old.so", interfaces=("ncclNetPlugin_v4",))

    assert found_ids(with_library(plugins=(unused,))) == []


def test_what_an_env_plugin_may_answer_is_not_said_to_be_in_force() -> None:
    scan = conf(
        "NCCL_P2P_DISABLE=1\n",
        plugins=(NcclPlugin("env", "/usr/lib/libnccl-env.so", "system"),),
        torch_nccl="2.28.9",
        **NVLINK,
    )

    assert "override-p2p-off" not in found_ids(scan)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_is_said_names_no_node(rule: Any) -> None:
    assert all("gpu001" not in finding.what for finding in find(FIRES[rule.id], rules=[rule]))
