"""NCCL libraries out of a collector's answer: names that several share are told once and given to each."""

from __future__ import annotations

from raw_answers import raw_answer

from topo_tune.scan.answer import node_scan_from_raw
from topo_tune.scan.facts.nccl import nccl_libraries
from topo_tune.scan.facts.nccl.nccl_libraries import RawLibrary


def test_libraries_that_share_a_list_of_names_each_get_it() -> None:
    raw = tuple(RawLibrary(path, "torch", version="2.28.9", names="k") for path in ("/a", "/b"))
    told = ("NCCL_ALGO", "NCCL_NET", "ncclNetPlugin_v9", "ncclNetPlugin_v10")

    found = nccl_libraries.parse(raw, {"k": told})

    assert [library.names for library in found] == [("NCCL_ALGO", "NCCL_NET")] * 2
    assert found[0].accepts == ("ncclNetPlugin_v10", "ncclNetPlugin_v9")


def test_a_library_that_was_not_looked_into_has_no_names() -> None:
    (library,) = nccl_libraries.parse((RawLibrary("/a", "system"),))

    assert (library.version, library.names) == (None, ())


def test_what_is_no_name_of_nccls_is_left_out() -> None:
    (library,) = nccl_libraries.parse((RawLibrary("/a", "system", names="k"),), {"k": ("NCCL_ALGO", "x; rm")})

    assert library.names == ("NCCL_ALGO",)


def test_names_and_plugins_arrive_in_the_scan() -> None:
    libraries = {
        "found": [{"path": "/usr/lib/libnccl.so.2", "found_in": "system", "names": "k"}],
        "names": {"k": ["NCCL_ALGO"]},
        "plugins": [{"kind": "net", "path": "/opt/a/libnccl-net.so", "found_in": "usual folder"}],
    }

    node = node_scan_from_raw("n1", raw_answer(libraries=libraries))

    assert node.nccl_libraries[0].names == ("NCCL_ALGO",)
    assert [plugin.path for plugin in node.plugins] == ["/opt/a/libnccl-net.so"]
