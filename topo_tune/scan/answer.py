"""The collector's answer, raw, and what it means: a `NodeScan`. Pure: no node is asked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from topo_tune.errors import InputError
from topo_tune.on_node import nccl_conf
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import RDMA_DEVICE_FILES, Absent, Cpu, Gpu, NcclFile, NodeScan
from topo_tune.scan.facts.fact import Fact, Gathered, RawCommand, with_absent
from topo_tune.scan.facts.gpus import nvidia_gpus, nvidia_topology
from topo_tune.scan.facts.host import cpu, numa
from topo_tune.scan.facts.nccl import nccl_files, nccl_libraries, nccl_plugins
from topo_tune.scan.facts.network import nics
from topo_tune.scan.facts.words import clipped, numa_index, said
from topo_tune.scan.questions import FACTS

Record = TypeVar("Record", bound=msgspec.Struct)

FORMAT = "topo-tune/collector"
"""`format` of an answer; the same as in `topo_tune/on_node/collector.py`."""
VERSION = 1

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class RawMachine(msgspec.Struct, frozen=True):
    """Operating system and memory, as files."""

    os_release: str | None = None
    meminfo: str | None = None


class RawCpu(msgspec.Struct, frozen=True):
    """CPUs: lines of /proc/cpuinfo, and what /sys counts."""

    cpuinfo: str = ""
    sockets: _Count | None = None
    cores: _Count | None = None
    threads: _Count | None = None


class RawNuma(msgspec.Struct, frozen=True):
    """NUMA node folders."""

    nodes: tuple[numa.RawNumaNode, ...] = ()


class RawGpu(msgspec.Struct, frozen=True):
    """One GPU as NVML tells it."""

    index: _Count
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: _Count | None = None
    compute_capability: str | None = None


class RawNvml(msgspec.Struct, frozen=True):
    """NVML; no `gpus` where it could not be asked."""

    driver: str | None = None
    cuda_driver: str | None = None
    gpus: tuple[RawGpu, ...] | None = None


class RawNvidiaSmi(msgspec.Struct, frozen=True):
    """The three commands that are asked of `nvidia-smi`."""

    topology: RawCommand = RawCommand(absent="not asked")
    query: RawCommand = RawCommand(absent="not asked")
    header: RawCommand = RawCommand(absent="not asked")


class RawPciFunction(msgspec.Struct, frozen=True):
    """One NVIDIA display controller on the PCI bus."""

    pci_bus_id: str
    numa_node: str | None = None


class RawNetwork(msgspec.Struct, frozen=True):
    """Interfaces, RDMA devices with the files that open them, and GPUs on the bus."""

    interfaces: tuple[nics.RawInterface, ...] = ()
    rdma: tuple[nics.RawRdma, ...] = ()
    rdma_files: tuple[str, ...] = ()
    gpu_functions: tuple[RawPciFunction, ...] = ()


class RawLibraries(msgspec.Struct, frozen=True):
    """NCCL libraries and plugins, and torch without having imported it."""

    found: tuple[nccl_libraries.RawLibrary, ...] = ()
    names: dict[str, tuple[str, ...]] = {}
    plugins: tuple[nccl_plugins.RawPlugin, ...] = ()
    torch: str | None = None
    torch_cuda: str | None = None
    torch_nccl: str | None = None


class RawFile(msgspec.Struct, frozen=True):
    """One configuration file."""

    path: str
    role: str = "nccl"
    exists: bool = False
    sha256: str | None = None
    text: str | None = None
    problem: str | None = None


class RawFiles(msgspec.Struct, frozen=True):
    """The files NCCL reads, in its order, then the drop-in fragments."""

    files: tuple[RawFile, ...] = ()


class RawAnswer(msgspec.Struct, frozen=True):
    """All that the collector says; what a probe could not tell is missing here and named in `absent`."""

    format: str
    version: int
    hostname: str
    kernel: str
    architecture: str
    python: str
    root: str = "/"
    proc: str = "/proc"
    sys: str = "/sys"
    environment: tuple[tuple[str, str], ...] = ()
    machine: RawMachine = RawMachine()
    cpu: RawCpu = RawCpu()
    numa: RawNuma = RawNuma()
    nvml: RawNvml = RawNvml()
    nvidia_smi: RawNvidiaSmi = RawNvidiaSmi()
    network: RawNetwork = RawNetwork()
    libraries: RawLibraries = RawLibraries()
    files: RawFiles = RawFiles()
    gathered: Gathered | None = None
    """None in an answer of a collector that facts could not ask yet"""
    absent: tuple[Absent, ...] = ()
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] | None = None


def node_scan_from_raw(node_name: str, raw: Mapping[str, Any], *, file: str | None = None) -> NodeScan:
    """The scan of one node from its collector's answer.

    Raises InputError, with the path of the field, where the answer is not one.
    """
    answer = _checked(raw, file)
    gpus, absent = _gpus(answer), list(answer.absent)
    matrix = _matrix(answer, absent)
    libraries = answer.libraries
    if gpus is None and not answer.nvidia_smi.query.stdout:
        absent.append(Absent("GPUs", answer.nvidia_smi.query.failure() or "`nvidia-smi` named none"))
    if answer.network.rdma and not answer.network.rdma_files:
        absent.append(Absent(RDMA_DEVICE_FILES, "no device file there that this session may open"))
    if answer.proc != "/proc" or answer.sys != "/sys":
        absent.append(
            Absent("this machine's own hardware", f"read from {answer.proc} and {answer.sys} instead")
        )
    problems = () if gpus is None else gpus.problems
    scan = NodeScan(
        node=node_name,
        hostname=answer.hostname,
        kernel=answer.kernel,
        operating_system=_operating_system(answer.machine.os_release),
        python=answer.python,
        cpu=_cpu(answer),
        numa=numa.parse(answer.numa.nodes),
        memory_bytes=numa.total_memory_bytes(answer.machine.meminfo or ""),
        gpus=() if gpus is None else _with_numa(gpus.gpus, answer),
        gpu_source=None if gpus is None else "nvml" if answer.nvml.gpus else "nvidia-smi",
        driver=None if gpus is None else gpus.driver,
        cuda_driver=None if gpus is None else gpus.cuda_driver,
        matrix=matrix,
        nics=nics.parse(answer.network.interfaces, answer.network.rdma),
        nccl_libraries=nccl_libraries.parse(libraries.found, libraries.names),
        plugins=nccl_plugins.parse(libraries.plugins),
        torch=libraries.torch,
        torch_nccl=nccl_libraries.version(libraries.torch_nccl),
        nccl_environment=tuple(pair for pair in answer.environment if pair[0].startswith("NCCL_")),
        nccl_files=tuple(_file(raw_file) for raw_file in answer.files.files),
        absent=(*absent, *(Absent("GPU", problem) for problem in problems)),
        collected_in_seconds=answer.seconds,
    )
    if answer.gathered is None:
        return printable(
            with_absent(scan, "facts of a later topo-tune", "this collector was not asked for them")
        )
    return printable(with_facts(scan, answer.gathered))


def with_facts(scan: NodeScan, gathered: Gathered, facts: tuple[Fact, ...] = FACTS) -> NodeScan:
    """The scan with every fact filled in that the gathered texts tell."""
    for fact in facts:
        try:
            scan = fact.tell(scan, gathered)
        except InputError as error:
            scan = with_absent(scan, fact.name, error.message)
    return scan


def parts_not_read(matrix: TopologyMatrix) -> list[Absent]:
    """What could not be read of a matrix, as facts of the node: an incomplete matrix must be seen as one."""
    return [Absent("part of the topology matrix", problem) for problem in matrix.problems]


def printable(record: Record) -> Record:
    """The same record without characters that could drive a terminal or that UTF-8 cannot hold, and without the
    values of secret variables."""
    return msgspec.convert(_printable(msgspec.to_builtins(record)), type(record))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(c if c == "\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)
    if isinstance(value, (list, tuple)):
        is_secret = len(value) == 2 and value[0] in nccl_conf.SECRETS
        return [value[0], nccl_conf.NOT_KEPT] if is_secret else [_printable(part) for part in value]
    if isinstance(value, dict):
        is_secret = value.get("name") in nccl_conf.SECRETS and "value" in value
        hidden = {"value": nccl_conf.NOT_KEPT} if is_secret else {}
        return {name: _printable(part) for name, part in value.items()} | hidden
    return value


def _checked(raw: Mapping[str, Any], file: str | None) -> RawAnswer:
    if raw.get("format") != FORMAT:
        raise InputError(f"this is no collector's answer: expected `format` to be `{FORMAT}`", file=file)
    if raw.get("version") != VERSION:
        found = clipped(str(raw.get("version")))
        raise InputError(
            f"this answer is of version {found}, and this topo-tune reads version {VERSION}",
            file=file,
            hint="scan the node again with this topo-tune",
        )
    try:
        return msgspec.convert(raw, RawAnswer)
    except msgspec.ValidationError as exc:
        raise InputError(f"the collector's answer is damaged: {exc}", file=file) from exc


def _gpus(answer: RawAnswer) -> nvidia_gpus.Gpus | None:
    """From NVML, else from `nvidia-smi`, else None."""
    smi = answer.nvidia_smi
    heading = nvidia_gpus.parse_heading(smi.header.stdout)
    if answer.nvml.gpus:
        found = tuple(
            Gpu(
                index=gpu.index,
                name=gpu.name or "unknown",
                uuid=gpu.uuid,
                pci_bus_id=nvidia_gpus.pci_bus_id(gpu.pci_bus_id),
                memory_bytes=gpu.memory_bytes,
                compute_capability=gpu.compute_capability,
                numa_node=None,
            )
            for gpu in answer.nvml.gpus
        )
        return nvidia_gpus.Gpus(found, answer.nvml.driver, answer.nvml.cuda_driver or heading)
    if smi.query.failure() is not None:
        return None
    try:
        queried = nvidia_gpus.parse(smi.query.stdout)
    except InputError:
        return None
    return msgspec.structs.replace(queried, cuda_driver=heading)


def _with_numa(gpus: tuple[Gpu, ...], answer: RawAnswer) -> tuple[Gpu, ...]:
    functions = answer.network.gpu_functions
    nodes = {nvidia_gpus.pci_bus_id(function.pci_bus_id): function.numa_node for function in functions}
    return tuple(
        msgspec.structs.replace(
            gpu, numa_node=numa_index(nodes.get(gpu.pci_bus_id)) if gpu.pci_bus_id else None
        )
        for gpu in gpus
    )


def _matrix(answer: RawAnswer, absent: list[Absent]) -> TopologyMatrix | None:
    topology = answer.nvidia_smi.topology
    failure = topology.failure()
    if failure is None:
        try:
            matrix = nvidia_topology.parse(topology.stdout)
        except InputError as error:
            failure = error.message
        else:
            absent.extend(parts_not_read(matrix))
            return matrix
    absent.append(Absent("topology matrix", failure))
    return None


def _cpu(answer: RawAnswer) -> Cpu:
    parsed, counted = cpu.parse(answer.cpu.cpuinfo, architecture=answer.architecture), answer.cpu
    # /sys counts packages and cores on every architecture; Arm's cpuinfo does not name them.
    return msgspec.structs.replace(
        parsed,
        sockets=counted.sockets or parsed.sockets,
        cores=counted.cores or parsed.cores,
        threads=counted.threads or parsed.threads,
    )


def _operating_system(os_release: str | None) -> str | None:
    match = re.search(r"^PRETTY_NAME=(.*)$", os_release or "", re.M)
    return said(match.group(1).strip().strip("\"'")) if match else None


def _file(raw: RawFile) -> NcclFile:
    if raw.text is not None:
        return nccl_files.parse(raw.text, path=raw.path, sha256=raw.sha256, note=raw.problem)
    problems = (raw.problem,) if raw.problem else ()
    return NcclFile(path=raw.path, exists=raw.exists, sha256=raw.sha256, problems=problems)
