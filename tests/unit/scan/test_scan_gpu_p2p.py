"""`nvidia-smi topo -p2p`: peer states, and what they are the answer to."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, MATRICES, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import P2pMatrix
from topo_tune.scan.facts.fact import Gathered, RawCommand
from topo_tune.scan.facts.gpus import gpu_p2p
from topo_tune.scan.facts.gpus.gpu_p2p import KINDS, command, matrices_in, parse

READ, PCIE = (text_of(FACTS / "p2p" / f"h200-580-{name}.txt") for name in ("read", "pcie"))
BEHIND_A_MATRIX = text_of(FACTS / "smi-topo" / "5090-2gpu-phb-with-p2p-matrix.txt")
(KIND,) = KINDS

OK = (("X", "OK"), ("OK", "X"))
TWO = ("GPU0", "GPU1")


def test_a_matrix_is_read_as_it_stands() -> None:
    assert parse(READ) == ((P2pMatrix("?", TWO, OK),), ())


def test_the_question_is_told_by_the_command_in_front_or_by_the_files_name() -> None:
    prompt = "root@gpu1:~# nvidia-smi topo -p2p n\n"

    assert matrices_in(prompt + READ)[0].capability == "n"
    assert matrices_in(READ, file="gpu001/topo-p2p-w.txt")[0].capability == "w"
    assert matrices_in(READ, file="p2p_read.out")[0].capability == "r"
    assert matrices_in(READ, file="nvidia-smi-p2p.txt")[0].capability == "?"


def test_several_matrices_in_one_text_each_have_their_own_question() -> None:
    text = "".join(f"$ nvidia-smi topo -p2p {letter}\n{READ}" for letter in "rw") + READ

    assert [matrix.capability for matrix in matrices_in(text)] == ["r", "w", "?"]


def test_a_matrix_behind_one_of_topo_m_is_found_and_the_file_is_not_taken_for_this_kind() -> None:
    assert matrices_in(BEHIND_A_MATRIX) == (P2pMatrix("?", TWO, (("X", "GNS"), ("GNS", "X"))),)
    assert not KIND.recognise(BEHIND_A_MATRIX)
    assert KIND.recognise(READ)


@pytest.mark.parametrize("file", MATRICES, ids=lambda file: file.stem)
def test_no_matrix_of_links_is_one_of_peer_states(file: object) -> None:
    from pathlib import Path

    assert isinstance(file, Path)
    assert bool(matrices_in(text_of(file))) == ("p2p" in file.name)
    assert not KIND.recognise(text_of(file))


def test_spaces_carriage_returns_and_labels_are_no_part_of_a_state() -> None:
    spaces = "0:         GPU0  GPU1\r\n0:  GPU0   X     CNS\r\n0:  GPU1   CNS   X\r\n"

    assert matrices_in(spaces)[0].states == (("X", "CNS"), ("CNS", "X"))


def test_a_row_that_is_cut_or_missing_leaves_its_states_unknown() -> None:
    (matrix,), problems = parse(" \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\n GPU2\tOK\tZZ\tX\n")

    assert matrix.states == (("X", "OK", "?"), ("?", "?", "?"), ("OK", "?", "X"))
    assert problems == ("line 3: GPU2: `ZZ` is no peer state",)


def test_one_gpu_alone_is_a_matrix_too() -> None:
    assert matrices_in(" \tGPU0\t\n GPU0\tX\t\n") == (P2pMatrix("?", ("GPU0",), (("X",),)),)


def test_a_node_is_asked_for_reads_writes_and_nvlink() -> None:
    answers = tuple(RawCommand(command(letter), 0, READ) for letter in "rw")
    failed = RawCommand(command("n"), 1, stderr="Invalid option")

    scan = gpu_p2p.FACTS[0].tell(node_scan(), Gathered(commands=(*answers, failed)))

    assert [matrix.capability for matrix in scan.p2p] == ["r", "w"]
    assert [absent.what for absent in scan.absent] == ["peer access (n)"]


def test_a_text_without_a_matrix_is_refused() -> None:
    with pytest.raises(InputError, match="no matrix of peer states"):
        parse("Option -p2p is missing its value.\n", file="p2p.txt")


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from([READ, PCIE, BEHIND_A_MATRIX]) | st.text(max_size=200),
    cut=st.tuples(st.integers(0, 900), st.integers(0, 900)),
    inserted=st.text(max_size=20) | st.sampled_from(["\t", "GPU0", "OK", "GPU0 GPU1\nGPU0 OK", "\x1b[4m"]),
)
def test_a_damaged_text_gives_square_matrices_or_none(text: str, cut: tuple[int, int], inserted: str) -> None:
    found = matrices_in(text[: cut[0]] + inserted + text[cut[1] :])

    for matrix in found:
        assert [len(row) for row in matrix.states] == [len(matrix.gpus)] * len(matrix.gpus)
