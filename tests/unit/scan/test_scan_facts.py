"""The smaller facts: GPUs, NICs, NUMA nodes, CPUs, NCCL's files and libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_facts import CONF_FILES, beside_the_repository, expected, shown_conf, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.scan.facts.gpus import nvidia_gpus
from topo_tune.scan.facts.host import cpu, numa
from topo_tune.scan.facts.nccl import nccl_files, nccl_libraries
from topo_tune.scan.facts.network import nics

QUERY = (
    "index, name, uuid, pci.bus_id, memory.total [MiB], driver_version, compute_cap\n"
    "0, NVIDIA H200, GPU-00000000-0000-0000-0000-000000000001, 00000000:18:00.0, 143771, 580.159.03, 9.0\n"
    "1, NVIDIA H200, GPU-00000000-0000-0000-0000-000000000002, 00000000:2A:00.0, 143771, 580.159.03, 9.0\n"
)


def test_gpus_are_read_by_the_names_in_the_header_line() -> None:
    found = nvidia_gpus.parse(QUERY)

    assert [gpu.pci_bus_id for gpu in found.gpus] == ["0000:18:00.0", "0000:2a:00.0"]
    assert found.gpus[0].memory_bytes == 143771 << 20
    assert found.gpus[1].compute_capability == "9.0"
    assert found.driver == "580.159.03"


def test_gpus_are_read_without_a_header_line_and_with_units() -> None:
    found = nvidia_gpus.parse("0, Tesla V100-SXM2-16GB, GPU-1, 00000000:06:00.0, 16384 MiB, 418.67\n")

    assert found.gpus[0].memory_bytes == 16384 << 20
    assert found.gpus[0].compute_capability is None
    assert found.driver == "418.67"


def test_what_a_gpu_does_not_support_is_unknown() -> None:
    found = nvidia_gpus.parse("0, NVIDIA GB10, GPU-1, 0000000F:01:00.0, [N/A], 580.95.05, 12.1\n")

    assert found.gpus[0].memory_bytes is None
    assert found.gpus[0].pci_bus_id == "000f:01:00.0"


def test_a_line_about_a_lost_gpu_is_a_problem_beside_the_others() -> None:
    found = nvidia_gpus.parse(
        QUERY + "Unable to determine the device handle for GPU 0000:3A:00.0: GPU is lost.\n"
    )

    assert len(found.gpus) == 2
    assert found.problems[0].startswith("line 4: `Unable to determine")


def test_an_answer_without_a_gpu_is_refused_with_what_was_found() -> None:
    with pytest.raises(InputError, match="found `No devices were found`"):
        nvidia_gpus.parse("No devices were found\n")


def test_the_cuda_version_stands_in_the_heading_of_nvidia_smi() -> None:
    heading = "| NVIDIA-SMI 580.159.03    Driver Version: 580.159.03     CUDA Version: 13.0     |"

    assert nvidia_gpus.parse_heading(heading) == "13.0"
    assert nvidia_gpus.parse_heading("command not found") is None


def port(state: str, rate: str, layer: str) -> nics.RawPort:
    return nics.RawPort("1", state, rate, layer)


def test_an_rdma_device_is_infiniband_or_roce_by_the_link_layer_of_its_port() -> None:
    devices = (
        nics.RawRdma("mlx5_0", (port("4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"),), "0", "mlx5_core"),
        nics.RawRdma("rocep145s0", (port("4: ACTIVE", "400 Gb/sec (4X NDR)", "Ethernet"),), "1", "mlx5_core"),
    )

    assert [
        (nic.kind, nic.is_up, nic.speed_gbit_per_s, nic.numa_node) for nic in nics.parse((), devices)
    ] == [
        ("infiniband", True, 400.0, 0),
        ("roce", True, 400.0, 1),
    ]


def test_an_rdma_device_with_one_port_down_has_the_speed_of_the_other() -> None:
    ports = (
        port("1: DOWN", "2.5 Gb/sec (1X SDR)", "InfiniBand"),
        port("4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand"),
    )

    (nic,) = nics.parse((), (nics.RawRdma("mlx5_0", ports),))

    assert (nic.is_up, nic.speed_gbit_per_s) == (True, 200.0)


def test_an_efa_device_is_not_taken_for_roce() -> None:
    (nic,) = nics.parse(
        (), (nics.RawRdma("rdmap16s27", (port("4: ACTIVE", "100 Gb/sec", "Ethernet"),), "0", "efa"),)
    )

    assert (nic.kind, nic.driver) == ("other", "efa")


@pytest.mark.parametrize(
    ("raw", "kind", "is_up", "speed"),
    [
        (nics.RawInterface("eth0", "1", "up", "100000", has_device=True), "ethernet", True, 100.0),
        (nics.RawInterface("eth1", "1", "down", None, has_device=True), "ethernet", False, None),
        (nics.RawInterface("bond0", "1", "up", "200000", "bonding"), "ethernet", True, 200.0),
        (nics.RawInterface("veth1", "1", "up", "10000"), "other", True, 10.0),
        (nics.RawInterface("docker0", "1", "up", "10000", "bridge"), "other", True, 10.0),
        (nics.RawInterface("ib0", "32", "up", "400000", has_device=True), "other", True, 400.0),
        (nics.RawInterface("lo", "772", "unknown"), "loopback", None, None),
        (nics.RawInterface("eth0", "1", "up", "-1", has_device=True), "ethernet", True, None),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_interface_has_the_kind_of_what_stands_behind_it(
    raw: nics.RawInterface, kind: str, is_up: bool | None, speed: float | None
) -> None:
    (nic,) = nics.parse((raw,), ())

    assert (nic.kind, nic.is_up, nic.speed_gbit_per_s) == (kind, is_up, speed)


def test_numa_nodes_come_in_order_and_memory_only_ones_have_no_cpus() -> None:
    nodes = (
        numa.RawNumaNode(2, "\n", "Node 2 MemTotal:  99614720 kB"),
        numa.RawNumaNode(0, "0-71\n", "Node 0 MemTotal: 501231232 kB\nNode 0 MemFree: 1 kB"),
    )

    parsed = numa.parse(nodes)

    assert [(node.index, node.cpus, node.memory_bytes) for node in parsed] == [
        (0, "0-71", 501231232 * 1024),
        (2, "", 99614720 * 1024),
    ]


def test_an_x86_cpu_is_told_by_vendor_and_model_and_its_cores_are_counted() -> None:
    text = "".join(
        f"processor\t: {thread}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\n"
        f"physical id\t: {thread % 2}\ncore id\t\t: {thread // 4}\n\n"
        for thread in range(8)
    )

    parsed = cpu.parse(text, architecture="x86_64")

    assert (parsed.vendor, parsed.model) == ("AuthenticAMD", "AMD EPYC 9654")
    assert (parsed.sockets, parsed.cores, parsed.threads) == (2, 4, 8)


def test_an_arm_cpu_is_told_by_its_implementer_and_part() -> None:
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"

    parsed = cpu.parse(text, architecture="aarch64")

    assert (parsed.vendor, parsed.model, parsed.sockets) == ("ARM", "Neoverse-V2", None)


def test_a_power_cpu_is_told_by_its_own_line() -> None:
    parsed = cpu.parse("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", architecture="ppc64le")

    assert (parsed.vendor, parsed.model) == ("IBM", "POWER9, altivec supported")


@pytest.mark.parametrize("file", CONF_FILES, ids=lambda file: file.name)
def test_a_real_configuration_file_is_read_as_its_golden_file_says(file: Path) -> None:
    assert shown_conf(nccl_files.parse(text_of(file), path="/etc/nccl.conf")) == expected(file)


@pytest.mark.parametrize("file", beside_the_repository("config"), ids=lambda file: file.name)
def test_every_configuration_file_from_a_real_machine_is_read_line_by_line(file: Path) -> None:
    parsed = nccl_files.parse(text_of(file), path=str(file))

    assert parsed.settings or parsed.problems


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("NCCL_ALGO =Ring", "NCCL keeps the space around the name"),
        ("NCCL_ALGO= Ring", "a space before the value, which NCCL keeps"),
        ('NCCL_ALGO="Ring"', "the quotes become a part of the value"),
        ("export NCCL_ALGO=Ring", "NCCL makes `export` a part of the name"),
        ("NCCL_BUFFSIZE=4M", "NCCL drops `M`: `4M` is 4"),
        ("NCCL_BUFFSIZE=010", "NCCL reads `010` as 8"),
        ("NCCL_IB_DISABLE=true", "`true` is 0"),
        ("NCCL_ALGO=Ring\nNCCL_ALGO=Tree", "`NCCL_ALGO` is set on line 1 already; the first wins"),
        ('"NCCL_ALGO=Ring",', "NCCL keeps the quote as a part of the name"),
        ("NCCL_TOPO_FILE=$HOME/topo.xml", "NCCL expands no variables"),
        ("just words", "has no `=` and is skipped"),
    ],
)
def test_a_line_that_nccl_misreads_is_a_problem_with_its_line_number(line: str, problem: str) -> None:
    problems = nccl_files.parse(line + "\n", path="/etc/nccl.conf").problems

    assert problem in problems[0]
    assert problems[0].startswith(f"line {line.count(chr(10)) + 1}: ")


def test_a_hexadecimal_number_is_one_that_nccl_reads() -> None:
    assert nccl_files.parse("NCCL_BUFFSIZE=0x400000\n", path="/etc/nccl.conf").problems == ()


def test_the_value_of_a_name_that_is_not_nccls_is_not_kept() -> None:
    parsed = nccl_files.parse("TOKEN=hunter2\nNCCL_ALGO=Ring\n", path="/etc/nccl.conf")

    assert [setting.value for setting in parsed.settings] == ["(not kept)", "Ring"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", "2.28.9"),
        ("2.28.9+cuda13.0", "2.28.9"),
        ("2.28.9-1", "2.28.9"),
        ("2.28", None),
        ("", None),
        (None, None),
    ],
)
def test_the_version_of_a_library_is_three_numbers_or_unknown(text: str | None, version: str | None) -> None:
    assert nccl_libraries.version(text) == version


@settings(deadline=None)
@given(st.text(max_size=400) | st.sampled_from([QUERY]), st.integers(0, 300), st.text(max_size=20))
def test_damaged_texts_raise_nothing_but_refusals(text: str, cut: int, inserted: str) -> None:
    damaged = text[:cut] + inserted + text[cut + 3 :]
    try:
        nvidia_gpus.parse(damaged)
    except InputError:
        pass
    nvidia_gpus.parse_heading(damaged)
    cpu.parse("CPU implementer: " + damaged, architecture="x")
    numa.parse((numa.RawNumaNode(0, damaged, "MemTotal:" + damaged),))
    nics.parse(
        (nics.RawInterface(damaged, damaged, damaged, damaged, damaged),),
        (nics.RawRdma(damaged, (), damaged),),
    )
    nccl_files.parse("NCCL_BUFFSIZE=" + damaged, path=damaged)
    nccl_libraries.version(damaged)
