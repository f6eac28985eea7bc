"""Rules about drivers and services: GPUDirect RDMA, kernel modules that do not fit, IMEX."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.in_force import in_force, number
from topo_tune.findings.machine import (
    gpu_count,
    is_rack_scale,
    lacks_direct_rdma,
    pci_gpus,
    rdma_names,
)
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import RDMA_DEVICE_FILES, NodeScan, Scan

_GUIDE = "NVIDIA/nccl: docs/userguide/source/troubleshooting/gpu_troubleshooting.rst"


def _modules(node: NodeScan) -> dict[str, str | None]:
    return dict(node.host.modules)


def _no_direct_rdma(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        modules = _modules(node)
        if not lacks_direct_rdma(node):
            continue
        is_certain = node.host.dma_buf is False
        yield Sighting(
            "GPUDirect RDMA is off: `nvidia_peermem` is not loaded"
            + (
                " and DMA-BUF does not work with this driver and kernel"
                if is_certain
                else ", and it is not known whether DMA-BUF works"
            ),
            node.node,
            (
                f"kernel {node.kernel}",
                f"NVIDIA module {modules['nvidia'] or 'of unknown version'}: {_flavour(node)}",
            ),
            severity=_how_bad(node, is_certain),
        )


def _how_bad(node: NodeScan, is_certain: bool) -> Severity:
    if not is_certain:
        return Severity.NOTICE
    return Severity.ERROR if _has_near_card(node) else Severity.WARNING


def _has_near_card(node: NodeScan) -> bool:
    """Whether a card sits below a GPU's PCIe switch: NCCL would use GPUDirect there, and the loss is largest."""
    if node.matrix is None:
        return False
    return any(
        node.matrix.link(gpu, nic) in ("PIX", "PXB") for gpu in node.matrix.gpus for nic in node.matrix.nics
    )


def _flavour(node: NodeScan) -> str:
    is_open = node.host.is_open_nvidia_module
    return "open or proprietary, not told" if is_open is None else "open" if is_open else "proprietary"


def _legacy_peer_memory(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        modules = _modules(node)
        if "nv_peer_mem" in modules:
            both = "nvidia_peermem" in modules
            yield Sighting(
                "the old module `nv_peer_mem` is loaded" + (" beside `nvidia_peermem`" if both else ""),
                node.node,
                severity=Severity.WARNING if both else Severity.NOTICE,
            )


def _no_gdrcopy(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_GDRCOPY_ENABLE")
        if "nvidia" in _modules(node) and node.host.gdrcopy is None and number(setting) == 1:
            what = "`NCCL_GDRCOPY_ENABLE=1` is set and GDRCopy's driver `gdrdrv` is not loaded"
            yield Sighting(what, node.node, (str(setting),))


def _old_kernel(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        is_lost = node.host.is_open_nvidia_module is True and node.host.dma_buf is False
        if is_lost and "nvidia_peermem" in _modules(node) and rdma_names(node):
            yield Sighting(
                "the kernel is too old for DMA-BUF, which NVIDIA's open module would offer; expected: 5.12 or newer",
                node.node,
                (f"kernel {node.kernel}",),
            )


def _versions_differ(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        loaded = _modules(node).get("nvidia")
        said = (*node.driver_trouble, *(one.reason for one in node.absent))
        told = [one for one in said if "version mismatch" in one.casefold()]
        if told:
            libraries = [one for one in node.driver_trouble if one.startswith("NVML library version")]
            yield Sighting(
                "NVIDIA's kernel module and its libraries are of different versions",
                node.node,
                (f"loaded module: {loaded or 'version not told'}", told[0], *libraries[:1]),
            )
        elif loaded is not None and node.driver is not None and not _are_alike(loaded, node.driver):
            yield Sighting(
                "NVIDIA's kernel module and its libraries are of different versions",
                node.node,
                (f"loaded module: {loaded}", f"libraries: {node.driver}"),
            )


def _are_alike(one: str, other: str) -> bool:
    """`580.159` and `580.159.04` are the same: some tools cut the last part off."""
    parts = [re.findall(r"\d+", text)[:3] for text in (one, other)]
    return all(a == b for a, b in zip(*parts, strict=False))


def _nouveau(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        modules = _modules(node)
        if "nouveau" in modules and (pci_gpus(node) or gpu_count(node) or "nvidia" in modules):
            is_in_the_way = "nvidia" not in modules
            yield Sighting(
                "the kernel's own driver `nouveau` is loaded"
                + (" in place of NVIDIA's" if is_in_the_way else " beside NVIDIA's"),
                node.node,
                severity=Severity.ERROR if is_in_the_way else Severity.WARNING,
            )


def _no_device_files(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        reason = next((one.reason for one in node.absent if one.what == RDMA_DEVICE_FILES), None)
        has_port = any(nic.is_up is not False for nic in node.nics if nic.kind in ("infiniband", "roce"))
        if reason is None or not gpu_count(node) or not (has_port or node.rdma):
            continue
        inside = node.host.container
        yield Sighting(
            "the node has RDMA devices, and this session may not open them"
            + (f": it is in a container ({inside})" if inside not in (None, "none") else ""),
            node.node,
            (reason,),
        )


def _no_imex(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        state = dict(node.host.services).get("nvidia-imex")
        # Under Kubernetes the daemon runs in pods, one for each job.
        if node.host.is_in_kubernetes or node.host.container not in (None, "none"):
            continue
        if is_rack_scale(node) and state not in (None, "active") and len(scan.nodes) > 1:
            yield Sighting(
                f"the IMEX service is {state} on a node of a multi-node NVLink rack; expected: active",
                node.node,
            )


def _no_imex_channel(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if is_rack_scale(node) and node.host.has_imex_channel is False and len(scan.nodes) > 1:
            yield Sighting(
                "no IMEX channel on a node of a multi-node NVLink rack; expected: "
                "`/dev/nvidia-caps-imex-channels/channel0`",
                node.node,
            )


_WITH_A_RULE_OF_THEIR_OWN = ("nvidia-fabricmanager", "nvidia-imex")
"""Services whose failure is told by what it does to the machine."""


def _failed_services(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for unit, state in node.host.services:
            if state == "failed" and unit.removesuffix(".service") not in _WITH_A_RULE_OF_THEIR_OWN:
                yield Sighting(f"the service `{unit}` has failed", node.node)


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpudirect-rdma-off",
        title="network cards have no direct way into GPU memory (GPUDirect RDMA)",
        severity=Severity.WARNING,
        why="without a way from the network card into GPU memory NCCL copies all network traffic through the "
        "CPU's memory, which costs up to half of the bandwidth between nodes",
        fix=(
            "`modprobe nvidia-peermem`, and `echo nvidia-peermem > /etc/modules-load.d/peermem.conf` for the "
            "next boot",
            "or install the open kernel module on Linux 5.12 or newer: NCCL then uses DMA-BUF by itself",
            "check with `NCCL_DEBUG=INFO`: network channels must end in `/GDRDMA`",
        ),
        source=_GUIDE + " (GPU-to-NIC communication); src/transport/net_ib/gdr.cc",
        look=_no_direct_rdma,
    ),
    Rule(
        id="legacy-peer-memory",
        title="the old peer-memory module is in use",
        severity=Severity.NOTICE,
        why="`nvidia_peermem` has replaced it and comes with the driver; the old module has to be rebuilt "
        "for each driver, and with both loaded nobody tells which one serves NCCL",
        fix=(
            "on a drained node: `rmmod nv_peer_mem`, remove the package nvidia-peer-memory-dkms, then "
            "`modprobe nvidia-peermem`",
        ),
        source="https://docs.nvidia.com/networking/display/GPUDirectRDMAv18/Installing+GPUDirect+RDMA",
        look=_legacy_peer_memory,
    ),
    Rule(
        id="gdrcopy-absent",
        title="GDRCopy is asked for, and its driver is not there",
        severity=Severity.WARNING,
        why="NCCL asks for GDRCopy where `NCCL_GDRCOPY_ENABLE=1` says so; without the driver it goes on without, and "
        "whoever measures the setting measures nothing",
        fix=(
            "install GDRCopy's driver (gdrdrv-dkms) and `modprobe gdrdrv`",
            "or unset `NCCL_GDRCOPY_ENABLE`",
        ),
        source="https://github.com/NVIDIA/gdrcopy",
        look=_no_gdrcopy,
    ),
    Rule(
        id="kernel-without-dma-buf",
        title="the kernel is too old for DMA-BUF",
        severity=Severity.NOTICE,
        why="GPUDirect RDMA works through `nvidia_peermem` only, which has to be loaded at every boot and "
        "rebuilt with every driver; DMA-BUF needs neither",
        fix=("update to a kernel of 5.12 or newer when the system is updated anyway",),
        source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
        look=_old_kernel,
    ),
    Rule(
        id="driver-version-mismatch",
        title="NVIDIA's kernel module and libraries differ in version",
        severity=Severity.ERROR,
        why="CUDA refuses to start: a package update replaced the libraries while the old module is still loaded",
        fix=(
            "reboot the node; or stop everything that uses GPUs and reload the modules: `rmmod nvidia_uvm "
            "nvidia_drm nvidia_modeset nvidia && modprobe nvidia`",
            "hold the driver packages back from unattended updates: `apt-mark hold nvidia-driver-VERSION`",
        ),
        source="https://github.com/XuehaiPan/nvitop/issues/41",
        look=_versions_differ,
    ),
    Rule(
        id="nouveau-loaded",
        title="the driver nouveau is loaded",
        severity=Severity.ERROR,
        why="it takes NVIDIA GPUs that are then missing from CUDA and from NCCL's communicators",
        fix=(
            "`echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf`, `update-initramfs -u` (or `dracut "
            "-f`) and reboot",
        ),
        source="https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",
        look=_nouveau,
    ),
    Rule(
        id="rdma-device-files-missing",
        title="RDMA devices cannot be opened",
        severity=Severity.ERROR,
        why="NCCL falls back to TCP sockets without a word, several times slower than InfiniBand or RoCE",
        fix=(
            "in Docker: `--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`",
            "in Kubernetes: ask for the RDMA resource of the device plugin",
            "on a host: `ls -l /dev/infiniband`, load `ib_uverbs`, and give the user access (group `rdma`)",
        ),
        source="mlcommons/training_results_v0.7: Alibaba/results/a100-8/resnet",
        look=_no_device_files,
    ),
    Rule(
        id="imex-not-active",
        title="the IMEX service does not run",
        severity=Severity.WARNING,
        why="NVLink between nodes needs it to export GPU memory: without it NCCL uses the network between "
        "nodes of one rack",
        fix=(
            "list the rack's nodes in `/etc/nvidia-imex/nodes_config.cfg` on each of them, then `systemctl "
            "enable --now nvidia-imex`",
            "`nvidia-imex-ctl -N` must show every node as READY",
        ),
        source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/deployment.html",
        look=_no_imex,
    ),
    Rule(
        id="imex-channel-missing",
        title="there is no IMEX channel",
        severity=Severity.WARNING,
        why="CUDA refuses to share memory across nodes without a channel that the user may open; NCCL then "
        "uses the network between nodes of one rack",
        fix=(
            "use the module option `NVreg_CreateImexChannel0=1`",
            "or at each boot: `mkdir -p /dev/nvidia-caps-imex-channels`, then `mknod "
            "/dev/nvidia-caps-imex-channels/channel0 c $(awk '/imex-channels/ {print $1}' /proc/devices) 0`",
        ),
        source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html",
        look=_no_imex_channel,
    ),
    Rule(
        id="service-failed",
        title="a service that NCCL depends on has failed",
        severity=Severity.WARNING,
        why="the fabric manager brings NVLink up, openibd the RDMA drivers, the persistence daemon keeps "
        "GPUs awake: jobs fail or slow down without them",
        fix=("`systemctl status SERVICE` and `journalctl -u SERVICE -b`, then `systemctl restart SERVICE`",),
        source="https://www.freedesktop.org/software/systemd/man/latest/systemctl.html",
        look=_failed_services,
    ),
)
