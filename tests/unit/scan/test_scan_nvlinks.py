"""`nvidia-smi nvlink -s` and `-e`."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import NvlinkLink
from topo_tune.scan.facts.fact import Gathered, RawCommand
from topo_tune.scan.facts.gpus import nvlinks
from topo_tune.scan.facts.gpus.nvlinks import KINDS, parse

FOLDER = FACTS / "nvlink"
A100, V100 = (text_of(FOLDER / f"nvlink-status-{name}.txt") for name in ("a100", "v100-6-inactive"))
STATUS, ERRORS = (text_of(FOLDER / f"h200-580-{name}.txt") for name in ("status", "errors"))
STATUS_KIND, REMOTE_KIND, ERRORS_KIND = KINDS

BLACKWELL_ERRORS = """\
GPU 0: NVIDIA B200 (UUID: GPU-1)
\t Link 0: Tx packets: 36140749276
\t Link 0: Malformed packet Errors: 1
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 2
\t Link 0: Link recovery successful events: 3
\t Link 0: Total link recovery events: 3
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Raw Errors Lane 0: 77
\t Link 0: FEC Errors - 0: 36140749276

"""


def test_an_a100_board_has_twelve_links_a_gpu() -> None:
    gpus, problems = parse(A100)

    assert problems == ()
    assert [(gpu.gpu, gpu.name, len(gpu.links)) for gpu in gpus] == [
        (index, "NVIDIA A100-SXM4-80GB", 12) for index in range(8)
    ]
    assert {link.gb_per_s for gpu in gpus for link in gpu.links} == {25.0}


def test_six_inactive_links_of_a_v100_board_are_found_where_they_are() -> None:
    gpus, _ = parse(V100)

    inactive = [(gpu.gpu, link.index) for gpu in gpus for link in gpu.links if link.is_active is False]

    assert inactive == [(3, 3), (3, 5), (4, 1), (5, 0), (5, 4), (6, 1)]
    assert {len(gpu.links) for gpu in gpus} == {6}
    assert gpus[0].links[0] == NvlinkLink(0, True, 25.781)
    assert gpus[0].uuid == "GPU-00000000-0000-0000-0000-000000000001"


def test_errors_are_added_up_for_each_link() -> None:
    gpus, _ = parse(ERRORS.replace("Link 2: Replay Errors: 0", "Link 2: Replay Errors: 4", 1))

    assert [link.errors for link in gpus[0].links[:4]] == [0, 0, 4, 0]
    assert {link.is_active for link in gpus[0].links} == {None}


def test_of_nvlink_5_only_counters_that_stand_still_on_a_healthy_link_are_added() -> None:
    (gpu,), _ = parse(BLACKWELL_ERRORS)

    assert gpu.links == (NvlinkLink(0, None, None, 6),)


def test_states_and_errors_of_the_same_gpu_come_together_in_either_order() -> None:
    assert STATUS_KIND.tell is not None
    assert ERRORS_KIND.tell is not None
    one = ERRORS_KIND.tell(STATUS_KIND.tell(node_scan(), STATUS, "s"), ERRORS, "e")
    other = STATUS_KIND.tell(ERRORS_KIND.tell(node_scan(), ERRORS, "e"), STATUS, "s")

    assert one.nvlinks == other.nvlinks
    assert one.nvlinks[1].links[17] == NvlinkLink(17, True, 26.562, 0)
    assert [gpu.name for gpu in one.gpus] == ["NVIDIA H200", "NVIDIA H200"]


def test_the_two_outputs_are_told_apart_by_their_lines() -> None:
    assert [STATUS_KIND.recognise(text) for text in (STATUS, A100, V100, ERRORS)] == [True, True, True, False]
    assert [ERRORS_KIND.recognise(text) for text in (STATUS, ERRORS, BLACKWELL_ERRORS)] == [False, True, True]


def test_a_gpu_whose_links_are_all_down_has_none() -> None:
    sentence = "NVML: Unable to retrieve NVLink information as all links are inActive\n"

    gpus, _ = parse("GPU 0: NVIDIA H200 (UUID: GPU-1)\n" + sentence)

    assert gpus[0].links == ()
    assert STATUS_KIND.recognise("GPU 0: NVIDIA H200 (UUID: GPU-1)\n" + sentence)


def test_a_node_is_asked_for_both() -> None:
    answers = (RawCommand(nvlinks.STATUS, 0, STATUS), RawCommand(nvlinks.ERRORS, 0, ERRORS))

    scan = nvlinks.FACTS[0].tell(node_scan(), Gathered(commands=answers))

    assert scan.nvlinks[0].links[0] == NvlinkLink(0, True, 26.562, 0)


def test_a_node_without_nvlink_says_nothing_and_one_that_fails_says_why() -> None:
    answers = (RawCommand(nvlinks.STATUS, 0, "\n"), RawCommand(nvlinks.ERRORS, 255, stderr="no NVLink"))

    scan = nvlinks.FACTS[0].tell(node_scan(), Gathered(commands=answers))

    assert scan.nvlinks == ()
    assert [absent.what for absent in scan.absent] == ["errors of NVLinks"]


def test_labels_tabs_and_carriage_returns_change_nothing() -> None:
    labelled = "".join(f"[1,0]<stdout>:{line}\r\n" for line in V100.replace("         ", "\t").split("\n"))

    assert parse(labelled)[0] == parse(V100)[0]


def test_a_text_without_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="no GPU with NVLinks"):
        parse("Link 0: 25 GB/s\n", file="nvlink.txt")


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from([V100, STATUS, ERRORS, BLACKWELL_ERRORS]) | st.text(max_size=200),
    cut=st.tuples(st.integers(0, 3000), st.integers(0, 3000)),
    inserted=st.text(max_size=20)
    | st.sampled_from(["Link 3: ", "9" * 5000, "GPU 1: x", "<inactive>", " GB/s"]),
)
def test_a_damaged_text_is_read_or_refused(text: str, cut: tuple[int, int], inserted: str) -> None:
    try:
        gpus, _ = parse(text[: cut[0]] + inserted + text[cut[1] :])
    except InputError:
        return

    assert all(link.errors is None or 0 <= link.errors < 1 << 63 for gpu in gpus for link in gpu.links)
    assert all(link.gb_per_s is None or link.gb_per_s > 0 for gpu in gpus for link in gpu.links)


REMOTE = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
         Link 0: Remote Device 00000000:07:00.0: Link 46
         Link 1: Remote Device 00000000:07:00.0: Link 47
"""


def test_links_that_lead_somewhere_are_active() -> None:
    assert [kind for kind in KINDS if kind.recognise(REMOTE)] == [REMOTE_KIND]
    scan = REMOTE_KIND.tell(node_scan(), REMOTE, "r.txt")  # type: ignore[misc]

    assert [(link.index, link.is_active, link.gb_per_s) for link in scan.nvlinks[0].links] == [
        (0, True, None),
        (1, True, None),
    ]
    assert scan.gpus[0].name == "NVIDIA H100 80GB HBM3"
