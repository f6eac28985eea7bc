"""gres.conf, and templates of it."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import SlurmDevice, SlurmDevices
from topo_tune.scan.documents.slurm_gres import parse, recognise

TEMPLATE = text_of(FACTS / "slurm" / "gres-oci-mi300x.conf.j2")

CONF = """# GPUs
AutoDetect=nvml
NodeName=gpu[001-002] Name=gpu Type=h100 File=/dev/nvidia[0-3,5-8]
NodeName=gpu003 Name=gpu Type=a100 File=/dev/nvidia0 COREs=0-7
NodeName=gpu003 Name=gpu Type=a100 File=/dev/nvidia1 COREs=8-15
nodename=gpu003 name=shard count=16
"""


def read(text: str) -> SlurmDevices:
    return parse(text, "gres.conf")[0]


def test_oracles_template() -> None:
    gres, problems = parse(TEMPLATE, "gres.conf.j2")

    assert problems == ()
    assert gres.devices == (("MI300X", 8), ("MI355X", 8))
    assert gres.is_template
    assert gres.vendor == "amd"
    assert gres.files == tuple(
        f"/dev/dri/renderD{number}" for number in (128, 136, 144, 152, 160, 168, 176, 184)
    )
    assert [line.nodes for line in gres.lines] == [(), (), (), ()]


def test_lines_of_a_node_add_up() -> None:
    gres = read(CONF)

    assert gres.devices == (("h100", 8), ("a100", 2), ("shard", 16))
    assert gres.lines[0] == SlurmDevice("gpu", "h100", 8, ("gpu001", "gpu002"))
    assert gres.files[:5] == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia5")
    assert (gres.autodetect, gres.vendor, gres.is_template) == ("nvml", "nvidia", False)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Name=gpu File=/dev/nvidia[0-7]", 8),
        ("Name=gpu File=/dev/nvidia0,/dev/nvidia1", 2),
        ("Name=gpu File=/dev/nvidia[00-03]", 4),
        ("Name=gpu Count=4", 4),
        ("Name=gpu Count=2K", 2048),
        ("Name=gpu", 1),
        ("Name = gpu  File = /dev/nvidia[0-1]", 2),
        ('Name=gpu File="/dev/nvidia[0-1]"', 2),
        ("Name=gpu MultipleFiles=/dev/nvidia[0-1],/dev/nvidia-caps/nvidia-cap1", 3),
    ],
)
def test_a_count_is_written_or_is_the_number_of_files(line: str, count: int) -> None:
    assert read(line).devices == (("gpu", count),)


def test_autodetect_alone_lists_nothing() -> None:
    assert read("AutoDetect=nvml\n") == SlurmDevices((), autodetect="nvml")


def test_blanks_inside_of_jinja_are_no_end_of_a_word() -> None:
    gres = read("NodeName={{ item.value.hostname }} Name=gpu File=/dev/nvidia[0-7] Type={{ type }}\n")

    assert gres.lines == (SlurmDevice("gpu", "{{type}}", 8),)


def test_what_is_no_number_is_a_problem() -> None:
    gres, problems = parse("Name=gpu Count=eight File=/dev/nvidia[0-3]\n", "gres.conf")

    assert gres.devices == (("gpu", 4),)
    assert problems == ("line 1: `Count=eight` is not a number",)


def test_a_text_without_devices_is_refused() -> None:
    with pytest.raises(InputError, match="no device in it"):
        parse("# Name=gpu\n", "gres.conf")


@pytest.mark.parametrize("text", [TEMPLATE, CONF, "AutoDetect=nvml\n", "Name=gpu File=/dev/nvidia[0-7]\r\n"])
def test_its_files_are_recognised(text: str) -> None:
    assert recognise(beginning(text).replace("\r", ""))


@pytest.mark.parametrize(
    "text", ["Name=eth0\n", "name = gpu\n", "Name=gpus\n", "NodeName=a CPUs=4\n", "[Match]\nName=en*\n"]
)
def test_other_files_are_not(text: str) -> None:
    assert not recognise(text)


@pytest.mark.parametrize(
    "text",
    [
        *huge("Name=gpu File=/dev/nvidia[0-99]"),
        *huge("Name=gpu File=[0-9],"),
        *huge("NodeName=a"),
        "Name=gpu File=/dev/a[0-999999],[5-9999999999999999999999]",
        "Name=gpu Count=" + "9" * 5000,
    ],
    ids=lambda text: f"{text[:20]!r}-{len(text)}",
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    told = read_or_refused(parse, text)

    assert told is None or len(told[0].files) <= 4096
    assert told is None or len(told[1]) <= 22


@settings(max_examples=60, deadline=None)
@given(damaged([TEMPLATE, CONF]))
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    told = read_or_refused(parse, text)

    assert told is None or isinstance(told[0], SlurmDevices)
