"""`lspci -vvv | grep ACSCtl`: controls without the devices that they are of."""

from __future__ import annotations

import pytest
from golden_facts import beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_file_trials import beginning
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.scan.facts.pci.acs_lines import KINDS, parse
from topo_tune.scan.saved_file import kind_of

(KIND,) = KINDS

# Lines quoted in NVIDIA/nccl#523 and #606.
GREPPED = """\
$ sudo lspci -vvv | grep ACSCtl
                ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
                ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
"""


def test_each_line_tells_what_is_on_for_one_device() -> None:
    assert parse(GREPPED) == (("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), (), ("SrcValid",))


@pytest.mark.parametrize("label", ["0: ", "[1,0]<stdout>:", "gpu001.lspci:"])
def test_what_stands_in_front_of_every_line_does_no_harm(label: str) -> None:
    lines = GREPPED.split("\n")[1:4]

    assert len(parse("\n".join(label + line for line in lines))) == 3


def test_a_saved_file_tells_a_node_that_controls_are_on_somewhere() -> None:
    scan = KIND.tell(node_scan(), GREPPED, "acs.txt")  # type: ignore[misc]

    assert kind_of(GREPPED) is KIND
    assert len(scan.unnamed_acs) == 3
    assert scan.pci == ()


def test_a_list_of_devices_is_not_taken_for_bare_lines() -> None:
    whole = "16:01.0 PCI bridge: Intel Corporation Device 352a (rev 30)\n" + GREPPED.split("\n", 1)[1]

    assert kind_of(whole).name == "`lspci` output"


def test_no_other_file_is_taken() -> None:
    files = [file for file in beside_the_repository(".") if file.name != "SOURCES.md"]

    taken = [file.name for file in files if KIND.recognise(beginning(text_of(file)))]

    assert taken == []


def test_a_text_without_controls_is_refused() -> None:
    with pytest.raises(InputError, match=r"acs\.txt: no ACS controls"):
        parse("ACSCtl: none\n", file="acs.txt")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(GREPPED)))
def test_a_damaged_text_is_read_or_refused(text: str, cut: int) -> None:
    try:
        parse(GREPPED[:cut] + text + GREPPED[cut:])
    except InputError:
        pass
