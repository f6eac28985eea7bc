"""PCI devices from /sys, with what `lspci` adds to them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.records.hardware import PcieLink
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Gathered, RawCommand, RawText
from topo_tune.scan.facts.pci.pci import FACTS

(FACT,) = FACTS
(LSPCI,) = FACT.commands
FOLDER = "/sys/bus/pci/devices/"

# A GPU and a card below a switch, a console and a disk beside them: name of the file, then address to text.
ROOT, UP, DOWN, GPU, OTHER_DOWN, NIC = (
    "0000:16:01.0",
    "0000:17:00.0",
    "0000:18:00.0",
    "0000:19:00.0",
    "0000:18:01.0",
    "0000:1a:00.0",
)
CONSOLE, DISK, LONELY = "0000:03:00.0", "0000:04:00.0", "0000:00:1c.0"
ABOVE = f"/sys/devices/pci0000:16/{ROOT}/{UP}/"
FILES = {
    "": {
        ROOT: f"/sys/devices/pci0000:16/{ROOT}",
        UP: f"/sys/devices/pci0000:16/{ROOT}/{UP}",
        DOWN: f"{ABOVE}{DOWN}",
        GPU: f"{ABOVE}{DOWN}/{GPU}",
        OTHER_DOWN: f"{ABOVE}{OTHER_DOWN}",
        NIC: f"{ABOVE}{OTHER_DOWN}/{NIC}",
        CONSOLE: f"/sys/devices/pci0000:00/{LONELY}/{CONSOLE}",
        LONELY: f"/sys/devices/pci0000:00/{LONELY}",
    },
    "class": {
        **dict.fromkeys((ROOT, UP, DOWN, OTHER_DOWN, LONELY), "0x060400\n"),
        GPU: "0x030200\n",
        NIC: "0x020700\n",
        CONSOLE: "0x030000\n",
        DISK: "0x010802\n",
    },
    "vendor": {
        **dict.fromkeys((UP, DOWN, OTHER_DOWN), "0x1000\n"),
        ROOT: "0x8086\n",
        GPU: "0x10de\n",
        NIC: "0x15b3\n",
        CONSOLE: "0x1a03\n",
    },
    "device": {GPU: "0x2330\n", NIC: "0x1021\n"},
    "numa_node": {GPU: "0\n", NIC: "-1\n"},
    "current_link_speed": {GPU: "2.5 GT/s PCIe\n", NIC: "16.0 GT/s PCIe\n", UP: "Unknown\n"},
    "current_link_width": {GPU: "16\n", NIC: "8\n", UP: "0\n"},
    "max_link_speed": {GPU: "32.0 GT/s PCIe\n", NIC: "32.0 GT/s PCIe\n"},
    "max_link_width": {GPU: "16\n", NIC: "255\n"},
    "driver": {GPU: "/sys/bus/pci/drivers/nvidia", NIC: "/sys/bus/pci/drivers/mlx5_core"},
    "physfn": {NIC: f"/sys/devices/pci0000:16/{ROOT}/0000:1a:00.1"},
}
SEEN_BY_ROOT = f"""\
{DOWN} PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
{GPU} 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
{DISK} Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd NVMe SSD [144d:a824]
"""


def gathered(files: dict[str, dict[str, str]] = FILES, lspci: RawCommand | None = None) -> Gathered:
    texts = [
        RawText(
            pattern=f"{FOLDER}*/{name}" if name else f"{FOLDER}*",
            path=f"{FOLDER}{address}/{name}" if name else f"{FOLDER}{address}",
            text=text,
        )
        for name, by_address in files.items()
        for address, text in by_address.items()
    ]
    return Gathered(
        commands=(lspci or RawCommand(LSPCI.argv, 0, SEEN_BY_ROOT),),
        files=tuple(texts),
    )


def told(answer: Gathered) -> NodeScan:
    return FACT.tell(node_scan(), answer)


def test_every_pattern_of_the_fact_is_one_that_the_test_answers() -> None:
    assert {files.pattern for files in FACT.files} == {file.pattern for file in gathered().files}


def test_devices_that_talk_are_kept_with_the_bridges_above_them() -> None:
    scan = told(gathered())

    assert [(device.address, device.kind, device.parent) for device in scan.pci] == [
        (ROOT, "bridge", None),
        (UP, "bridge", ROOT),
        (DOWN, "bridge", UP),
        (OTHER_DOWN, "bridge", UP),
        (GPU, "gpu", DOWN),
        (NIC, "nic", OTHER_DOWN),
    ]


def test_a_device_is_told_with_link_driver_and_numa_node() -> None:
    devices = {device.address: device for device in told(gathered()).pci}

    assert devices[GPU].link == PcieLink(2.5, 32.0, 16, 16)
    assert (devices[GPU].vendor_id, devices[GPU].device_id) == ("10de", "2330")
    assert (devices[GPU].driver, devices[GPU].numa_node) == ("nvidia", 0)
    assert not devices[GPU].is_virtual_function


def test_numbers_that_mean_nothing_are_unknown() -> None:
    devices = {device.address: device for device in told(gathered()).pci}

    assert devices[NIC].link == PcieLink(16.0, 32.0, 8, None)
    assert devices[NIC].numa_node is None
    assert devices[NIC].is_virtual_function
    assert devices[UP].link is None


def test_lspci_adds_names_and_acs_controls() -> None:
    scan = told(gathered())
    devices = {device.address: device for device in scan.pci}

    assert devices[GPU].name == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    assert devices[DOWN].acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert devices[UP].acs is None
    assert scan.absent == ()


def test_controls_that_only_root_sees_are_absent() -> None:
    seen = f"{DOWN} PCI bridge [0604]: Broadcom / LSI PEX890xx [1000:c030]\n\tCapabilities: <access denied>\n"

    scan = told(gathered(lspci=RawCommand(LSPCI.argv, 0, seen)))

    assert [(absent.what, absent.reason) for absent in scan.absent] == [
        ("ACS controls", "`lspci` shows them only to root")
    ]


def test_a_node_without_lspci_keeps_its_tree() -> None:
    scan = told(gathered(lspci=RawCommand(LSPCI.argv, absent="`lspci` is not installed here")))

    assert len(scan.pci) == 6
    assert scan.absent[0].reason == "`lspci` is not installed here"


def test_a_node_without_a_pci_bus_says_so() -> None:
    scan = told(Gathered())

    assert scan.pci == ()
    assert scan.absent[0].what == "PCI devices"


def test_a_guest_with_a_flat_bus_has_devices_without_parents() -> None:
    """As seen on a virtual machine with two H200."""
    flat = {
        "": {address: f"/sys/devices/pci0000:00/{address}" for address in ("0000:00:06.0", "0000:00:03.0")},
        "class": {"0000:00:06.0": "0x030200", "0000:00:03.0": "0x020000"},
        "vendor": {"0000:00:06.0": "0x10de", "0000:00:03.0": "0x1af4"},
        "device": {"0000:00:06.0": "0x2335", "0000:00:03.0": "0x1041"},
        "numa_node": {"0000:00:06.0": "-1", "0000:00:03.0": "-1"},
        "current_link_speed": {"0000:00:06.0": "32.0 GT/s PCIe"},
        "current_link_width": {"0000:00:06.0": "16"},
    }

    scan = told(gathered(flat))

    assert [(device.kind, device.parent, device.numa_node) for device in scan.pci] == [
        ("nic", None, None),
        ("gpu", None, None),
    ]


def test_only_devices_of_interest_leave_the_node() -> None:
    (classes,) = (files for files in FACT.files if files.pattern.endswith("/class"))

    assert classes.keep is not None
    assert LSPCI.keep is not None


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(list(FILES)),
    address=st.sampled_from([GPU, NIC, UP, "x", "0000:zz:00.0", ""]),
    text=st.text(max_size=200),
    output=st.text(max_size=200),
)
def test_any_answer_is_read(name: str, address: str, text: str, output: str) -> None:
    files = {**FILES, name: {**FILES[name], address: text}}

    scan = told(gathered(files, RawCommand(LSPCI.argv, 0, output)))

    assert len(scan.pci) <= 8


def test_bridges_that_claim_to_be_above_each_other_end_somewhere() -> None:
    circle = {
        **FILES,
        "": {**FILES[""], ROOT: f"/sys/devices/{DOWN}/{ROOT}"},
    }

    assert len(told(gathered(circle)).pci) == 6
