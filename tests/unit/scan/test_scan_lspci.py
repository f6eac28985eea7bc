"""`lspci` in all of its forms: real texts, layouts of other versions, and broken ones."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import PciDevice, PcieLink
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.pci import lspci, lspci_tree
from topo_tune.scan.facts.pci.pci import KINDS

LIST, TREE = KINDS
FILES = sorted((FACTS / "lspci").glob("*.txt"))

# What `sudo lspci -vvvnn` says of a root port, a switch, a GPU and a card, shortened to what matters and a little more.
VERBOSE = """\
16:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 30) (prog-if 00 [Normal decode])
\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- DisINTx+
\tNUMA node: 0
\tBus: primary=16, secondary=17, subordinate=1b, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)
\t\tLnkCap2: Supported Link Speeds: 2.5-32GT/s, Crosslink- Retimer+ 2Retimers+ DRS-
\tCapabilities: [110 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport

17:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0) (prog-if 00 [Normal decode])
\tBus: primary=17, secondary=18, subordinate=1b, sec-latency=0
\t\tLnkSta:\tSpeed 32GT/s, Width x16

18:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0) (prog-if 00 [Normal decode])
\tBus: primary=18, secondary=19, subordinate=19, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

19:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:16c1]
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)
\tKernel driver in use: nvidia
\tKernel modules: nvidiafb, nouveau, nvidia_drm, nvidia

1a:00.2 Infiniband controller [0207]: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function [15b3:101e]
\t\tLnkSta:\tSpeed unknown, Width x0
"""

GPU_WORDS = "VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684]"
AUDIO_WORDS = "Audio device [0403]: NVIDIA Corporation AD102 High Definition Audio Controller [10de:22ba]"
DEVICES_OF_TWO = (
    PciDevice("0000:01:00.0", "0300", "10de", "2684", "NVIDIA Corporation AD102 [GeForce RTX 4090]"),
    PciDevice(
        "0000:01:00.1", "0403", "10de", "22ba", "NVIDIA Corporation AD102 High Definition Audio Controller"
    ),
)


def by_address(text: str) -> dict[str, PciDevice]:
    return {device.address: device for device in lspci.parse(text).devices}


def read(text: str, scan: NodeScan | None = None) -> NodeScan:
    assert LIST.tell is not None
    return LIST.tell(scan or node_scan(), text, "lspci.txt")


def kinds(devices: tuple[PciDevice, ...]) -> Counter[str]:
    return Counter(device.kind for device in devices)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_real_text_is_read_as_its_golden_file_says(file: Path, golden: Callable[[str, str], None]) -> None:
    lines = [
        f"{device.address} {device.class_code} {device.vendor_id}:{device.device_id} {device.kind}"
        f" below {device.parent}: {device.name}"
        for device in read(text_of(file)).pci
    ]

    golden(f"facts/lspci/{file.name}.json", json.dumps(lines, indent=1) + "\n")


def test_the_gb200_tray_has_its_gpus_and_cards() -> None:
    devices = read(text_of(FACTS / "lspci" / "lspci-gb200.txt")).pci

    cards = Counter(device.name for device in devices if device.kind == "nic" and device.vendor_id == "15b3")
    assert len(devices) == 87
    assert len({device.address[:4] for device in devices}) == 12
    assert kinds(devices)["gpu"] == 4
    assert cards == {
        "Mellanox Technologies MT2910 Family [ConnectX-7]": 4,
        "Mellanox Technologies MT43244 BlueField-3 integrated ConnectX-7 network controller": 4,
    }


def test_the_a100_machine_has_eight_gpus_and_six_switches() -> None:
    devices = read(text_of(FACTS / "lspci" / "lspci-nn-a100.txt")).pci

    assert (kinds(devices)["gpu"], kinds(devices)["nvswitch"]) == (8, 6)
    assert next(device.address for device in devices if device.kind == "nvswitch") == "0005:00:00.0"
    assert sum(device.is_virtual_function for device in devices) == 9


def test_the_tree_has_four_gpus_and_two_cards_with_two_ports_on_both_sockets() -> None:
    devices = {
        device.address: device for device in read(text_of(FACTS / "lspci" / "lspci-tv-2socket-4gpu.txt")).pci
    }

    gpus = [device for device in devices.values() if device.kind == "gpu"]
    ports = [device.address for device in devices.values() if "ConnectX-7" in (device.name or "")]
    assert [(gpu.address, gpu.parent) for gpu in gpus] == [
        ("0000:01:00.0", "0000:00:01.1"),
        ("0000:41:00.0", "0000:40:01.1"),
        ("0000:c1:00.0", "0000:c0:01.1"),
        ("0000:e1:00.0", "0000:e0:01.1"),
    ]
    assert all("AD102GL" in (gpu.name or "") for gpu in gpus)
    assert ports == ["0000:21:00.0", "0000:21:00.1", "0000:81:00.0", "0000:81:00.1"]
    assert devices["0000:01:00.1"].kind == "other"


def test_a_deep_branch_of_the_tree_has_all_bridges_above_it() -> None:
    devices = {
        device.address: device for device in read(text_of(FACTS / "lspci" / "lspci-tv-2socket-4gpu.txt")).pci
    }

    chain = ["0000:68:00.0"]
    while (parent := devices[chain[-1]].parent) is not None:
        chain.append(parent)

    assert chain == [
        "0000:68:00.0",
        "0000:64:1c.0",
        "0000:63:00.0",
        "0000:62:00.0",
        "0000:61:00.0",
        "0000:60:01.1",
    ]
    assert all(devices[address].kind == "bridge" for address in chain[1:])


def test_no_scan_of_gpus_is_invented() -> None:
    assert read(text_of(FACTS / "lspci" / "lspci-gb200.txt")).gpus == ()


def test_the_verbose_form_tells_links_acs_numa_nodes_drivers_and_the_tree() -> None:
    devices = by_address(VERBOSE)

    gpu = devices["0000:19:00.0"]
    assert gpu.name == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    assert (gpu.vendor_id, gpu.device_id, gpu.kind) == ("10de", "2330", "gpu")
    assert gpu.link == PcieLink(16.0, 32.0, 8, 16)
    assert (gpu.numa_node, gpu.driver, gpu.acs) == (0, "nvidia", None)
    assert gpu.parent == "0000:18:00.0"
    assert devices["0000:18:00.0"].parent == "0000:17:00.0"
    assert devices["0000:17:00.0"].parent == "0000:16:01.0"
    assert devices["0000:18:00.0"].acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert devices["0000:16:01.0"].acs == ()
    assert devices["0000:16:01.0"].link == PcieLink(32.0, 32.0, 16, 16)
    assert devices["0000:1a:00.2"].is_virtual_function
    assert devices["0000:1a:00.2"].link is None


def test_capabilities_that_only_root_sees_are_named() -> None:
    told = lspci.parse(
        "18:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n\tCapabilities: <access denied>\n"
    )

    assert told.devices[0].acs is None
    assert told.problems == ("links and ACS controls are not told: `lspci` shows capabilities only to root",)


@pytest.mark.parametrize(
    "text",
    [
        f"01:00.0 {GPU_WORDS} (rev a1)\n01:00.1 {AUDIO_WORDS} (rev a1)\n",
        "Slot:\t01:00.0\nClass:\tVGA compatible controller [0300]\nVendor:\tNVIDIA Corporation [10de]\n"
        "Device:\tAD102 [GeForce RTX 4090] [2684]\nSVendor:\tMSI [1462]\nSDevice:\tDevice [5103]\nRev:\ta1\n\n"
        "Slot:\t01:00.1\nClass:\tAudio device [0403]\nVendor:\tNVIDIA Corporation [10de]\n"
        "Device:\tAD102 High Definition Audio Controller [22ba]\n",
        '01:00.0 "VGA compatible controller [0300]" "NVIDIA Corporation [10de]" "AD102 [GeForce RTX 4090] [2684]" '
        '-ra1 "MSI [1462]" "Device [5103]"\n'
        '01:00.1 "Audio device [0403]" "NVIDIA Corporation [10de]" "AD102 High Definition Audio Controller [22ba]" '
        '-ra1 "MSI [1462]" "Device [5103]"\n',
        f" 0: 0000:01:00.0 {GPU_WORDS}\r\n 0: 0000:01:00.1 {AUDIO_WORDS}\r\n",
        f"[1,0]<stdout>:01:00.0 {GPU_WORDS}\n[1,0]<stdout>:01:00.1 {AUDIO_WORDS}\n",
    ],
    ids=["-nn", "-vmmnn", "-mmnn", "srun -l", "mpirun --tag-output"],
)
def test_every_form_tells_the_same_two_devices(text: str) -> None:
    assert LIST.recognise(text)
    assert read(text).pci == DEVICES_OF_TWO


@pytest.mark.parametrize(
    "text",
    [
        "19:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev ff)",
        "19:00.0 3D controller: NVIDIA Corporation GH100 (prog-if ff)\n\t!!! Unknown header type 7f\n",
        "19:00.0 0302: 10de:2330 (rev ff)",
        '19:00.0 "3D controller" "NVIDIA Corporation" "GH100" -rff "" ""',
        "Slot:\t19:00.0\nClass:\t3D controller\nVendor:\tNVIDIA Corporation\nDevice:\tGH100\nRev:\tff\n",
    ],
)
def test_a_card_that_fell_off_the_bus_is_dead_in_every_form(text: str) -> None:
    alive = text.replace("(rev ff)", "(rev a1)").replace("-rff", "-ra1").replace("Rev:\tff", "Rev:\ta1")

    (dead,) = lspci.parse(text).devices
    (other,) = lspci.parse(alive.replace("!!! Unknown header type 7f", "Physical Slot: 1")).devices

    assert (dead.is_dead, dead.kind) == (True, "gpu")
    assert not other.is_dead
    assert lspci.both(other, dead).is_dead


def test_numbers_alone_tell_class_vendor_and_device() -> None:
    (device,) = read("0001:00:00.0 0302: 10de:20b2 (rev a1)\n").pci

    assert device == PciDevice("0001:00:00.0", "0302", "10de", "20b2")
    assert device.kind == "gpu"


def test_the_old_machine_form_names_the_address_as_a_device() -> None:
    (device,) = read(
        "Device:\t01:00.0\nClass:\t3D controller\nVendor:\tNVIDIA Corporation\nDevice:\tGH100\n"
    ).pci

    assert (device.address, device.kind, device.name) == ("0000:01:00.0", "gpu", "NVIDIA Corporation GH100")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "05:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 52)",
            "other",
        ),
        ("00:02.0 VGA compatible controller: Intel Corporation UHD Graphics 770 (rev 0c)", "other"),
        ("00:01.0 VGA compatible controller: Somebody Ltd. Console (rev 01)", "other"),
        (
            "03:00.0 Display controller: Advanced Micro Devices, Inc. [AMD/ATI] Aldebaran/MI200 (rev 01)",
            "gpu",
        ),
        (
            "05:00.0 Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]",
            "gpu",
        ),
        ("34:00.0 Processing accelerators: Intel Corporation Device 0b60 (rev 03)", "other"),
        ("07:00.0 Bridge: NVIDIA Corporation GH100 [H100 NVSwitch] (rev a1)", "nvswitch"),
        ("00:1f.0 Bridge: Intel Corporation Device 1234", "bridge"),
        ("00:06.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)", "nic"),
        ("10000:e1:00.0 Non-Volatile memory controller: Intel Corporation NVMe SSD", "other"),
        ("00:00.0 Unassigned class [ff00]: Red Hat, Inc. Virtio file system", "other"),
        ("3d:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]", "nic"),
    ],
)
def test_what_a_line_is_about(line: str, kind: str) -> None:
    (device,) = read(line).pci

    assert device.kind == kind


def test_domains_of_five_digits_keep_them() -> None:
    (device,) = read("10000:e1:00.0 Non-Volatile memory controller: Intel Corporation NVMe SSD").pci

    assert device.address == "10000:e1:00.0"


def test_two_tasks_are_not_mixed() -> None:
    text = "0: 01:00.0 3D controller: NVIDIA Corporation GH100\n1: 02:00.0 3D controller: NVIDIA Corporation GH100\n"

    scan = read(text)

    assert [device.address for device in scan.pci] == ["0000:01:00.0"]
    assert scan.absent[0].reason == "lspci.txt: lines of 1 other tasks are left out"


def test_a_list_and_a_tree_of_one_node_are_one_set_of_devices() -> None:
    tree = "-[0000:00]---01.1-[01]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]\n"
    scan = read(
        "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [10de:2684] (rev a1)\n",
        read(tree),
    )

    (bridge, gpu) = scan.pci
    assert (bridge.address, bridge.kind) == ("0000:00:01.1", "bridge")
    assert (gpu.class_code, gpu.device_id, gpu.parent) == ("0300", "2684", "0000:00:01.1")
    assert gpu.name == "NVIDIA Corporation AD102 [GeForce RTX 4090]"


def test_both_forms_in_one_file_are_read() -> None:
    text = "-[0000:00]---01.1-[01]----00.0  NVIDIA A\n\n01:00.0 3D controller: NVIDIA Corporation AD102\n"

    assert [device.address for device in read(text).pci] == ["0000:00:01.1", "0000:01:00.0"]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        # without names, and with a root bus of many buses
        (
            "-[0000:00-ff]-+-00.0\n              \\-01.0-[01]----00.0\n",
            ["0000:00:00.0", "0000:00:01.0", "0000:01:00.0"],
        ),
        # old versions tell no domain
        (
            "-[00]-+-00.0  Intel Corporation Host\n      \\-1f.3  Intel Corporation SMBus\n",
            ["0000:00:00.0", "0000:00:1f.3"],
        ),
        # several domains, and an empty bus
        (
            "-+-[0002:00]---00.0-[01-05]----00.0  A\n +-[0001:00]-\n \\-[0000:00]---00.0-[01]--\n",
            ["0002:00:00.0", "0002:01:00.0", "0000:00:00.0"],
        ),
        # a VMD domain
        ("-[10000:e0]-+-01.0-[e1]----00.0  Intel Corporation NVMe\n", ["10000:e0:01.0", "10000:e1:00.0"]),
    ],
)
def test_trees_of_other_shapes(text: str, addresses: list[str]) -> None:
    assert TREE.recognise(text)
    assert not LIST.recognise(text)
    assert [device.address for device in read(text).pci] == addresses


def test_a_tree_cut_off_above_names_the_lines_it_cannot_place() -> None:
    text = " |           \\-01.1-[81]----00.0  NVIDIA GH100\n-[0000:00]---01.1-[01]----00.0  NVIDIA GH100\n"

    scan = read(text)

    assert [device.address for device in scan.pci] == ["0000:00:01.1", "0000:01:00.0"]
    assert "the branch above" in scan.absent[0].reason


@pytest.mark.parametrize(
    ("name", "address", "kind"),
    [
        ("NVIDIA Corporation Device 2941", "0008:01:00.0", "gpu"),
        ("NVIDIA Corporation Device 22ba", "0000:01:00.1", "other"),
        ("NVIDIA Corporation Device 1af1", "0005:00:00.0", "nvswitch"),
        ("NVIDIA Corporation TU102 USB 3.1 Host Controller", "0000:01:00.2", "other"),
        ("Mellanox Technologies MT2910 Family [ConnectX-7 PCIe Bridge]", "0000:01:00.0", "other"),
        ("Mellanox Technologies MT43244 BlueField-3 SoC Management Interface", "0000:03:00.2", "other"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]", "0000:05:00.0", "gpu"),
        ("Broadcom Inc. and subsidiaries BCM57508 NetXtreme-E", "0000:05:00.0", "nic"),
        ("", "0000:05:00.0", "unknown"),
    ],
)
def test_a_name_without_a_class_tells_what_it_is(name: str, address: str, kind: str) -> None:
    assert PciDevice(address, name=name or None).kind == kind


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hello", "GPU0\tX\tNV18\n", "12:34:56.7 error: out of memory\n", "+-- a\n"]
)
def test_text_without_devices_is_refused(text: str) -> None:
    assert not any(kind.recognise(text) for kind in KINDS)
    with pytest.raises(InputError):
        read(text)


def test_no_other_kind_is_taken_for_one() -> None:
    others = [file for file in beside_the_repository(".") if not file.name.startswith("lspci")]

    beginnings = {file.name: text_of(file)[: 256 << 10] for file in others}

    assert [name for name, text in beginnings.items() if any(k.recognise(text) for k in KINDS)] == []


@settings(max_examples=60, deadline=None)
@given(
    text=st.sampled_from([VERBOSE, *map(text_of, FILES)]),
    at=st.integers(0, 4000),
    cut=st.integers(0, 400),
    junk=st.text(max_size=80),
)
def test_a_broken_text_is_read_or_refused(text: str, at: int, cut: int, junk: str) -> None:
    broken = text[:at] + junk + text[at + cut :]
    for kind in KINDS:
        kind.recognise(broken)
    for parse in (lspci.parse, lspci_tree.parse):
        try:
            told = parse(broken)
        except InputError:
            continue
        assert told.devices


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="-+\\|[]0123456789abcdef:. \n", max_size=400))
def test_any_drawing_is_read_or_refused(text: str) -> None:
    try:
        assert lspci_tree.parse(text).devices
    except InputError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "18:00.0 3D controller: NVIDIA\n" * 160_000,
        "-[0000:00]-" + "01.0-[01]-" * 500_000,
        "x" * 5_000_000,
        "".join(
            f"{n >> 16:04x}:{n >> 8 & 255:02x}:{n >> 3 & 31:02x}.{n & 7} 0302: 10de:20b2\n"
            for n in range(150_000)
        ),
        "".join(f"-[0000:{n & 255:02x}]-+-00.0\n" for n in range(200_000)),
        ("LnkSta: Speed" + " " * 900 + "\n") * 5000,
    ],
    ids=["repeated", "deep", "one line", "many devices", "many roots", "blanks"],
)
def test_five_megabytes_take_no_time(text: str) -> None:
    started = time.monotonic()
    try:
        scan = read(text)
    except InputError:
        scan = node_scan()

    # Ten times what it takes, so that a busy machine does not fail it.
    assert time.monotonic() - started < 5.0
    assert len(scan.pci) <= lspci.DEVICES_LIMIT
