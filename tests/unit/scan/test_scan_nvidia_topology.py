"""The matrix of `nvidia-smi topo -m`, from real texts and from broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_facts import FACTS, MATRICES, beside_the_repository, expected, shown_matrix, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.scan.facts.gpus.nvidia_topology import parse

TWO_GPUS = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-55\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
)


def golden(name: str) -> TopologyMatrix:
    return parse(text_of(FACTS / "smi-topo" / name))


@pytest.mark.parametrize("file", MATRICES, ids=lambda file: file.stem)
def test_a_real_text_is_read_as_its_golden_file_says(file: Path) -> None:
    assert shown_matrix(parse(text_of(file))) == expected(file)


@pytest.mark.parametrize("file", beside_the_repository("smi-topo"), ids=lambda file: file.stem)
def test_every_text_from_a_real_machine_has_a_matrix(file: Path) -> None:
    assert parse(text_of(file)).gpus


@pytest.mark.parametrize(
    ("name", "one", "other", "word"),
    [
        ("gcp-a3ultra-h200-8gpu-8nic-ansi.txt", "GPU0", "rocep145s0", "PIX"),
        ("gcp-a3ultra-h200-8gpu-8nic-ansi.txt", "GPU0", "rocep206s0", "SYS"),
        ("gke-a4-b200-8gpu-8nic-spaces.txt", "GPU7", "mlx5_6", "PIX"),
        ("dgx1-v100-8gpu-4nic-hybrid-cube.txt", "GPU2", "mlx5_1", "PIX"),
        ("dgx1-v100-8gpu-4nic-hybrid-cube.txt", "GPU0", "GPU5", "SYS"),
        ("rtx6000ada-4gpu-4port.txt", "mlx5_0", "mlx5_1", "PIX"),
        ("4090-8gpu-2nic-all-sys.txt", "GPU6", "NIC0", "PHB"),
        ("4090-8gpu-2nic-all-sys.txt", "NIC1", "NIC1", "X"),
        ("pxb-pix-4gpu-acs-hang.txt", "GPU2", "GPU3", "PIX"),
        ("a100-4gpu-2nic-numa-reversed.txt", "GPU2", "mlx5_1", "PIX"),
        ("5090-2gpu-phb-with-p2p-matrix.txt", "GPU0", "GPU1", "PHB"),
        ("l40s-4gpu-2nic.txt", "GPU3", "mlx5_1", "NODE"),
        ("wrx90-2gpu-2port.txt", "GPU0", "GPU1", "PHB"),
    ],
)
def test_a_pair_is_joined_as_its_text_says(name: str, one: str, other: str, word: str) -> None:
    assert golden(name).link(one, other) == word


def test_a_matrix_that_is_cut_off_names_the_rows_it_lacks() -> None:
    matrix = golden("gb200-4gpu-6nic-truncated.txt")

    assert "no row for GPU3, NIC0" in matrix.problems[0]
    assert matrix.link("GPU3", "GPU0") == "?"
    assert matrix.link("GPU0", "GPU3") == "NV18"


def test_the_numa_node_of_a_gpus_own_memory_is_kept_apart_from_its_affinity() -> None:
    matrix = golden("gb200-4gpu-6nic-truncated.txt")

    assert matrix.gpu_numa_ids[:3] == (2, 10, 18)
    assert matrix.numa_affinity[0] == "0,3-9,11-17"


def test_carriage_returns_are_no_part_of_a_word() -> None:
    assert parse(TWO_GPUS.replace("\n", "\r\n")) == parse(TWO_GPUS)


def test_a_single_gpu_is_a_matrix_too() -> None:
    matrix = parse("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-63\t0\t\tN/A\n")

    assert matrix.links == (("X",),)
    assert matrix.cpu_affinity == ("0-63",)


def test_the_word_of_old_drivers_for_another_socket_is_read_as_sys() -> None:
    assert parse(TWO_GPUS.replace("SYS", "SOC")).link("GPU1", "NIC0") == "SYS"


def test_a_word_that_is_no_link_is_a_problem_with_its_line() -> None:
    matrix = parse(TWO_GPUS.replace("GPU0\t X \tNV18", "GPU0\t X \tQUX9"))

    assert matrix.link("GPU0", "GPU1") == "?"
    assert matrix.problems == ("line 2: GPU0 to GPU1: `QUX9`, which is no link",)


def test_an_empty_cell_is_a_problem_and_does_not_shift_the_row() -> None:
    matrix = parse(TWO_GPUS.replace("GPU0\t X \tNV18", "GPU0\t X \t"))

    assert matrix.links[0] == ("X", "?", "PIX")
    assert matrix.problems == ("line 2: GPU0 to GPU1: nothing",)


def test_two_gpus_that_the_text_calls_one_are_a_problem() -> None:
    matrix = parse(TWO_GPUS.replace("NV18", "X"))

    assert matrix.problems == ("GPU0 and GPU1: X, which is for one and the same device",)


def test_a_link_that_differs_by_direction_is_a_problem() -> None:
    matrix = parse(TWO_GPUS.replace("NIC0\tPIX", "NIC0\tPHB"))

    assert matrix.problems == ("GPU0 and NIC0: PIX one way and PHB the other",)


def test_a_second_output_in_one_file_is_left_out_and_said() -> None:
    matrix = parse(TWO_GPUS + TWO_GPUS)

    assert matrix.links == parse(TWO_GPUS).links
    assert matrix.problems == ("line 5: a second matrix begins here and is left out",)


def test_a_row_for_a_device_that_the_header_lacks_is_a_problem() -> None:
    assert parse(TWO_GPUS + "NIC7\tSYS\tSYS\tSYS\n").problems == (
        "line 5: a row for `NIC7`, which the header does not name",
    )


def test_a_legend_with_one_name_twice_is_left_out() -> None:
    text = TWO_GPUS.replace("NIC0\tCPU", "NIC0\tNIC1\tCPU") + "NIC Legend:\n NIC0: mlx5_0\n NIC1: mlx5_0\n"

    matrix = parse(text)

    assert matrix.nics == ("NIC0", "NIC1")
    assert "the NIC legend gives one name to two NICs and is left out" in matrix.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header line `GPU0 ... CPU Affinity`, found nothing"),
        ("\n\nNo devices were found\n", "n:3: no topology matrix"),
        ("NVIDIA-SMI has failed because it couldn't communicate", "found `NVIDIA-SMI has failed"),
        (
            " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n",
            "this is not the matrix of `nvidia-smi topo -m`",
        ),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "the header names 2 devices and no row follows it"),
        ("\tGPU0\tGPU0\tCPU Affinity\nGPU0\tX\tX\t0\n", "the header names `GPU0` twice"),
        ("\tGPU0 " + "NIC1 " * 600 + "\tCPU Affinity\n", "more than 512"),
    ],
)
def test_a_text_without_a_matrix_is_refused_with_file_line_and_finding(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, file="n")

    assert message in str(caught.value)
    assert "hint: save the whole output" in str(caught.value)


@settings(deadline=None)
@given(
    file=st.sampled_from(MATRICES),
    cut=st.tuples(st.integers(0, 3000), st.integers(0, 3000)),
    inserted=st.text(max_size=20)
    | st.sampled_from(["\t", "\n", "GPU0", " X ", "\x1b[4m", "NIC0: a", "CPU Affinity"]),
)
def test_a_damaged_text_gives_a_matrix_or_a_refusal_and_nothing_else(
    file: Path, cut: tuple[int, int], inserted: str
) -> None:
    text = text_of(file)
    damaged = text[: cut[0]] + inserted + text[cut[1] :]

    try:
        matrix = parse(damaged)
    except InputError:
        return

    names = matrix.gpus + matrix.nics
    assert [len(row) for row in matrix.links] == [len(names)] * len(names)
    assert len(matrix.cpu_affinity) == len(matrix.numa_affinity) == len(matrix.gpus)
