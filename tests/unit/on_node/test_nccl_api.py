"""NCCL's functions as they are called: structures, versions, errors. The library is a double."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from topo_tune.on_node import nccl_api
from topo_tune.on_node.nccl_api import UNDEFINED, Nccl, NcclError, config_fields, config_structure

MAPS = """\
7f10c0000000-7f10c0001000 r--p 00000000 08:01 11 /usr/lib/libc.so.6
7f10d0000000-7f10d0001000 r--p 00000000 08:01 12 {path}
7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0 [stack]
"""


class Library:
    """As much of NCCL as is asked for here: it says yes to everything, or no to one function."""

    def __init__(self, code: int = 22809, refused: str = "", words: bytes = b"") -> None:
        self.code, self.refused = code, refused
        self.asked: list[str] = []
        self.config: Any = None
        self.ncclGetLastError = lambda handle: words

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.asked.append(name)
            if name == "ncclGetVersion":
                arguments[0]._obj.value = self.code
            if name == "ncclCommInitRankConfig":
                self.config = arguments[4]._obj
            if name == "ncclGroupSimulateEnd":
                arguments[0]._obj.estimated_seconds = 12.5
            return 5 if name == self.refused else 0

        return function


def communicator(library: Library) -> nccl_api.Communicator:
    return Nccl(library).communicator(2, 0, bytes(128))


@pytest.mark.parametrize("path", ["/venv/nvidia/nccl/lib/libnccl.so.2", "/venv/torch/lib/libtorch_cuda.so"])
def test_the_library_is_the_one_that_is_mapped(path: str) -> None:
    assert nccl_api.loaded_library(MAPS.format(path=path)) == path


def test_where_none_is_mapped_there_is_none() -> None:
    assert nccl_api.loaded_library(MAPS.format(path="/usr/lib/libm.so.6")) is None


@pytest.mark.parametrize(
    ("code", "version"), [(22809, (2, 28, 9)), (22105, (2, 21, 5)), (2708, (2, 7, 8)), (30000, (3, 0, 0))]
)
def test_a_version_is_read_from_its_code(code: int, version: tuple[int, ...]) -> None:
    assert nccl_api.version_of_code(code) == version


def test_a_configuration_has_the_fields_of_its_version_and_no_more() -> None:
    assert config_fields((2, 21, 5)) == ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "splitShare")
    assert "nvlsCTAs" in config_fields((2, 27, 3))
    # nccl.h: a size, two words, four numbers, a pointer, a number, filled up to whole pointers
    assert ctypes.sizeof(config_structure((2, 21, 5))) == 8 + 2 * 4 + 4 * 4 + 8 + 4 + 4


def test_what_is_not_configured_is_left_to_nccl() -> None:
    library = Library()

    Nccl(library).communicator(2, 1, bytes(128), {"maxCTAs": 8})

    assert (library.config.maxCTAs, library.config.minCTAs) == (8, UNDEFINED)
    assert (library.config.netName, library.config.version) == (None, 22809)


def test_a_field_of_a_later_version_is_refused_before_anything_is_made() -> None:
    library = Library(22105)

    with pytest.raises(ValueError, match=r"NCCL 2\.21\.5 has no `nvlsCTAs` in its configuration"):
        Nccl(library).communicator(2, 0, bytes(128), {"nvlsCTAs": 4})

    assert library.asked == ["ncclGetVersion"]


def test_an_error_has_the_calls_name_the_results_and_nccls_last_words() -> None:
    library = Library(refused="ncclAllReduce", words=b"enqueue.cc:7\n  no such\talgorithm \xff\n")

    with pytest.raises(NcclError) as caught:
        communicator(library).all_reduce(1, 1, 4, 7, 0)

    assert str(caught.value) == "ncclAllReduce: invalid usage (5): enqueue.cc:7 no such algorithm \ufffd"


def test_a_result_that_nobody_knows_is_told_by_its_number() -> None:
    assert str(NcclError("ncclSend", 99, "")) == "ncclSend: result 99 (99)"


def test_a_group_is_ended_also_when_a_call_in_it_fails() -> None:
    library = Library(refused="ncclSend")
    made = communicator(library)

    with pytest.raises(NcclError):
        Nccl(library).group(lambda: made.send(1, 4, 7, 1, 0))

    assert library.asked[-2:] == ["ncclSend", "ncclGroupEnd"]


def test_an_estimate_is_in_seconds_and_runs_nothing() -> None:
    library = Library()
    made = communicator(library)

    seconds = Nccl(library).estimate(lambda: made.all_reduce(1, 1, 4, 7, 0))

    assert seconds == pytest.approx(12.5e-6)
    assert library.asked[-3:] == ["ncclGroupStart", "ncclAllReduce", "ncclGroupSimulateEnd"]


def test_letting_go_waits_and_aborting_does_not() -> None:
    library = Library()

    communicator(library).destroy()
    destroyed = library.asked[-2:]
    communicator(library).abort()

    assert destroyed == ["ncclCommFinalize", "ncclCommDestroy"]
    assert library.asked[-1] == "ncclCommAbort"
