"""Rules about the NVSwitch fabric: what GPUs say of it, and the manager that sets it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_tune.findings.gpus.each_gpu import Trouble, name_of, on_each_gpu
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import FabricManager, GpuHealth
from topo_tune.records.scan import NodeScan, Scan

_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlFabricDefs.html"
_READY = ("Completed", "Success")
_UNKNOWN = ("Not Supported", "Unknown", "N/A")


def _not_ready(node: NodeScan, gpu: GpuHealth) -> Trouble | None:
    state, status = gpu.fabric_state, gpu.fabric_status
    # Where the manager is down that is the cause, and said.
    if state is None or state in _UNKNOWN or _is_down(node):
        return None
    if state == "Completed" and (status is None or status == "Success" or status in _UNKNOWN):
        return None
    if state == "Completed":
        return Trouble("a GPU could not join the NVSwitch fabric", f"state {state}, status {status}")
    return Trouble(f"a GPU has not joined the NVSwitch fabric: {state}", f"state {state}")


def _degraded(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if not gpu.fabric_troubles:
        return None
    return Trouble(
        "the NVLink fabric reports trouble: " + "; ".join(gpu.fabric_troubles), "; ".join(gpu.fabric_troubles)
    )


def _cliques(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        cliques = Counter(gpu.fabric_clique for gpu in node.gpu_health if gpu.fabric_clique)
        if len(cliques) > 1:
            lines = [
                f"{name_of(node, gpu)}: clique {gpu.fabric_clique}"
                for gpu in node.gpu_health
                if gpu.fabric_clique
            ]
            yield Sighting(
                "GPUs of one node are in different NVLink cliques", node.node, evidence=tuple(lines)
            )


def _switches(node: NodeScan) -> int:
    return sum(1 for device in node.pci if device.kind == "nvswitch" and device.is_of("10de", "NVIDIA"))


def _is_ready(node: NodeScan) -> bool:
    """Whether GPUs say that the fabric works, whoever manages it: a container, the hypervisor, a switch tray."""
    return any((gpu.fabric_state, gpu.fabric_status) == _READY for gpu in node.gpu_health)


def _is_down(node: NodeScan) -> bool:
    manager = node.fabric_manager or FabricManager()
    return manager.is_running is False and _switches(node) > 0 and not _is_ready(node)


def _manager_down(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if _is_down(node):
            yield Sighting(
                "the fabric manager does not run on a machine with NVSwitches",
                node.node,
                evidence=(
                    f"{_switches(node)} NVSwitches on the PCI bus",
                    "nvidia-fabricmanager is not active",
                ),
            )


def _manager_version(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        version = node.fabric_manager.version if node.fabric_manager else None
        if version is None or node.driver is None or version == node.driver or not _switches(node):
            continue
        yield Sighting(
            "the fabric manager is of another version than the driver",
            node.node,
            evidence=(f"fabric manager {version}, driver {node.driver}",),
        )


def _manager_errors(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        problems = node.fabric_manager.problems if node.fabric_manager else ()
        if problems:
            yield Sighting("the fabric manager's log has errors", node.node, evidence=problems[-6:])


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-fabric-not-ready",
        title="a GPU has not joined the NVSwitch fabric",
        severity=Severity.ERROR,
        why="until its state is `Completed` and `Success`, CUDA fails with error 802 (system not yet "
        "initialized) or NVLink is missing; NCCL's NVLS and multi-node NVLink do not work",
        fix=(
            "`systemctl status nvidia-fabricmanager`; on multi-node NVLink `nvidia-imex-ctl -N` and the "
            "switch tray's manager",
            "driver, fabric manager and firmware must be of one release; then restart the manager and reset the GPUs",
        ),
        source=_GUIDE,
        look=on_each_gpu(_not_ready),
    ),
    Rule(
        id="gpu-fabric-degraded",
        title="the NVLink fabric is degraded",
        severity=Severity.WARNING,
        why="NVLink works with less than it has, or recovers: collectives within the node or domain slow down",
        fix=("`nvidia-smi -q | grep -A 12 Fabric`, the fabric manager's log, `dmesg | grep -E 'Xid|SXid'`",),
        source=_NVML,
        look=on_each_gpu(_degraded),
    ),
    Rule(
        id="gpu-fabric-cliques-differ",
        title="a node's GPUs are in different NVLink cliques",
        severity=Severity.WARNING,
        why="NCCL uses multi-node NVLink only within one cluster UUID and clique: between the others it "
        "takes the network",
        fix=(
            "look at the partitions of the NVLink domain in the fabric manager (`nmx-c` or `nv-fabricmanager`)",
        ),
        source="NVIDIA/nccl: src/mnnvl.cc",
        look=_cliques,
    ),
    Rule(
        id="fabric-manager-down",
        title="the fabric manager does not run",
        severity=Severity.ERROR,
        why="without it NVSwitches route nothing: CUDA does not start on these GPUs, or they have no NVLink",
        fix=(
            "`systemctl enable --now nvidia-fabricmanager`, then `journalctl -u nvidia-fabricmanager -b`",
            "its version must be the driver's, to the last number",
        ),
        source=_GUIDE,
        look=_manager_down,
    ),
    Rule(
        id="fabric-manager-version",
        title="the fabric manager is not the driver's",
        severity=Severity.WARNING,
        why="it refuses to start with a driver of another version: after the next restart or reboot NVLink "
        "is gone",
        fix=("install the fabric manager of exactly the driver's version and hold both packages together",),
        source=_GUIDE,
        look=_manager_version,
    ),
    Rule(
        id="fabric-manager-errors",
        title="the fabric manager's log has errors",
        severity=Severity.WARNING,
        why="NVSwitch errors end or stall NVLink traffic of all GPUs behind the port: jobs hang or end with "
        "an Xid",
        fix=(
            "`grep -E 'ERROR|FATAL' /var/log/fabricmanager.log | tail`, and the SXid lines of `dmesg` at that time",
        ),
        source=_GUIDE,
        look=_manager_errors,
    ),
)
