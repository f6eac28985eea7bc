"""What the bytes of a library say: on small ELF files made here, and on files that are none."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topo_tune.on_node import nccl_libraries, shared_libraries
from topo_tune.on_node.probes import Commands

HEADER_BYTES = 64


def elf(constants: bytes = b"", symbols: bytes = b"", code: bytes = b"") -> bytes:
    """A 64-bit ELF file with the sections .text, .rodata and .dynstr, and their table at the end."""
    names = b"\0.text\0.rodata\0.dynstr\0.shstrtab\0"
    parts = [(1, code), (7, b"\0" + constants), (15, b"\0" + symbols), (23, names)]
    body, headers, at = b"", struct.pack("<IIQQQQ", 0, 0, 0, 0, 0, 0) + b"\0" * 24, HEADER_BYTES
    for name, part in parts:
        headers += struct.pack("<IIQQQQ", name, 1, 0, 0, at, len(part)) + b"\0" * 24
        body += part
        at += len(part)
    head = bytearray(HEADER_BYTES)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 0x28, at)
    struct.pack_into("<HHH", head, 0x3A, 64, 5, 4)
    return bytes(head) + body + headers


NCCL = elf(
    constants=b"NCCL version 2.28.9+cuda13.0\0NCCL_ALGO\0Set NCCL_NET to IB\0see NCCL_IB_HCA\0NCCL_ALGO\0"
    b"ncclNetPlugin_v11\0",
    code=b"NCCL_NOT_A_CONSTANT\0NCCL version 1.2.3+cuda9\0",
)
OFI = elf(
    constants=b"NCCL_OFI_TUNER_TYPE\0",
    symbols=b"ncclNetPlugin_v9\0ncclNetPlugin_v10\0ncclCollNetPlugin_v8\0ncclTunerPlugin_v3\0dlopen\0",
)


def test_version_and_names_come_from_the_read_only_data_alone(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(NCCL)

    told = shared_libraries.look_into(str(tmp_path / "libnccl.so.2"))

    # `NCCL_NET to IB` is a sentence; `NCCL_IB_HCA` ends one, and an end may be a string of its own.
    assert told == {
        "version": "2.28.9",
        "names": ["NCCL_ALGO", "NCCL_IB_HCA"],
        "accepts": ["ncclNetPlugin_v11"],
        "interfaces": [],
    }


def test_interfaces_come_from_the_symbols(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_bytes(OFI)

    told = shared_libraries.look_into(str(tmp_path / "libnccl-net.so"))

    assert told["interfaces"] == [
        "ncclCollNetPlugin_v8",
        "ncclNetPlugin_v10",
        "ncclNetPlugin_v9",
        "ncclTunerPlugin_v3",
    ]


def test_a_file_without_sections_is_searched_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF" + b"\0" * 100 + b"NCCL version 2.14.3+cuda11.7\0NCCL_ALGO\0")

    assert shared_libraries.look_into(str(tmp_path / "a.so")) == {
        "version": "2.14.3",
        "names": ["NCCL_ALGO"],
        "accepts": [],
        "interfaces": [],
    }


def test_only_what_can_hold_the_answer_of_a_large_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    large = elf(constants=b"NCCL version 2.28.9+cuda13.0\0NCCL_ALGO\0", code=b"\0")
    # The same file with a hole of 340 MB behind its sections.
    path.write_bytes(large)
    with path.open("r+b") as file:
        file.truncate(340 << 20)
    began = time.monotonic()

    told = shared_libraries.look_into(str(path))

    assert told["version"] == "2.28.9"
    assert time.monotonic() - began < 0.2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, len(NCCL) - 1),
    data=st.binary(min_size=1, max_size=12),
    length=st.integers(1, len(NCCL)),
)
def test_a_damaged_file_gives_an_answer_or_an_error_that_is_expected(
    tmp_path: Path, at: int, data: bytes, length: int
) -> None:
    path = tmp_path / "damaged.so"
    path.write_bytes((NCCL[:at] + data + NCCL[at + len(data) :])[:length])

    told = shared_libraries.look_into(str(path))

    assert set(told) == {"version", "names", "accepts", "interfaces"}


def test_an_empty_or_missing_file_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "empty.so").write_bytes(b"")

    assert shared_libraries.version_in(str(tmp_path / "empty.so")) is None
    assert shared_libraries.version_in(str(tmp_path / "none.so")) is None


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Neither the loader's cache nor this machine's folders are looked at."""
    monkeypatch.setattr(nccl_libraries, "_LIBRARY_FOLDERS", ())
    monkeypatch.setattr(nccl_libraries, "_PLUGIN_FOLDERS", ())
    monkeypatch.setattr(nccl_libraries, "_site_folders", list)
    return Commands({"PATH": "/nonexistent"}, 1.0, 0.0)


def test_a_library_under_several_names_counts_once_and_the_same_names_travel_once(
    tmp_path: Path, no_tools: Commands
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libnccl.so.2").write_bytes(NCCL)
    (tmp_path / "a/libnccl.so").symlink_to("libnccl.so.2")
    (tmp_path / "a/libnccl.so.2.28.9").hardlink_to(tmp_path / "a/libnccl.so.2")

    told = nccl_libraries.libraries(
        {"LD_LIBRARY_PATH": f"{tmp_path}/a:{tmp_path}/b"}, "/", "/nonexistent", no_tools
    )

    assert [library["path"] for library in told["found"]] == [
        f"{tmp_path}/a/libnccl.so",
        f"{tmp_path}/b/libnccl.so.2",
    ]
    (key,) = told["names"]
    assert [library["names"] for library in told["found"]] == [key, key]


def test_a_plugin_counts_once_for_each_kind_of_its_symbols(tmp_path: Path, no_tools: Commands) -> None:
    (tmp_path / "libnccl-net-ofi.so").write_bytes(OFI)
    (tmp_path / "libnccl-net.so").symlink_to("libnccl-net-ofi.so")
    (tmp_path / "libnccl-ofi-tuner.so").symlink_to("libnccl-net-ofi.so")

    told = nccl_libraries.libraries({"LD_LIBRARY_PATH": str(tmp_path)}, "/", "/nonexistent", no_tools)

    assert [(plugin["kind"], plugin["path"], plugin["interfaces"]) for plugin in told["plugins"]] == [
        (
            "net",
            f"{tmp_path}/libnccl-net.so",
            ["ncclCollNetPlugin_v8", "ncclNetPlugin_v10", "ncclNetPlugin_v9"],
        ),
        ("tuner", f"{tmp_path}/libnccl-net.so", ["ncclTunerPlugin_v3"]),
    ]
    assert told["plugins"][0]["names"] == ["NCCL_OFI_TUNER_TYPE"]


def test_a_plugin_is_found_by_path_by_name_and_by_the_end_of_its_name(
    tmp_path: Path, no_tools: Commands
) -> None:
    (tmp_path / "libnccl-net-ofi.so").write_bytes(OFI)
    (tmp_path / "libnccl-tuner-aws.so").write_bytes(OFI)
    environment = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "NCCL_NET_PLUGIN": "ofi",
        "NCCL_TUNER_PLUGIN": f"{tmp_path}/libnccl-tuner-aws.so",
        "NCCL_PROFILER_PLUGIN": "none",
        "NCCL_ENV_PLUGIN": "gone",
    }

    told = nccl_libraries.libraries(environment, "/", "/nonexistent", no_tools)["plugins"]

    assert [(p["kind"], p["path"], p["found_in"], p.get("exists", True)) for p in told[:3]] == [
        ("net", f"{tmp_path}/libnccl-net-ofi.so", "NCCL_NET_PLUGIN", True),
        ("tuner", f"{tmp_path}/libnccl-tuner-aws.so", "NCCL_TUNER_PLUGIN", True),
        ("env", "gone", "NCCL_ENV_PLUGIN", False),
    ]


def test_the_plugin_that_a_file_of_nccl_names_is_looked_for(tmp_path: Path, no_tools: Commands) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_NET_PLUGIN={{hpcx_path}}/lib/libnccl-net.so\n")

    (plugin,) = nccl_libraries.libraries({}, str(tmp_path), "/nonexistent", no_tools)["plugins"]

    assert (plugin["found_in"], plugin["exists"]) == ("NCCL_NET_PLUGIN", False)
