"""Plugins out of a collector's answer."""

from __future__ import annotations

from topo_tune.records.scan import NcclPlugin
from topo_tune.scan.facts.nccl import nccl_plugins
from topo_tune.scan.facts.nccl.nccl_plugins import RawPlugin


def test_a_plugins_newest_interface_comes_first() -> None:
    raw = RawPlugin("net", "/a.so", "system", interfaces=("ncclNetPlugin_v9", "ncclNetPlugin_v10"))

    (plugin,) = nccl_plugins.parse((raw,))

    assert plugin == NcclPlugin("net", "/a.so", "system", ("ncclNetPlugin_v10", "ncclNetPlugin_v9"))


def test_a_name_that_leads_to_no_file_is_kept_as_such() -> None:
    (plugin,) = nccl_plugins.parse((RawPlugin("tuner", "aws", "NCCL_TUNER_PLUGIN", exists=False),))

    assert (plugin.path, plugin.exists, plugin.interfaces) == ("aws", False, ())


def test_what_is_no_interface_or_no_variable_is_left_out() -> None:
    raw = RawPlugin(
        "net", "/a.so", "system", interfaces=("main", "ncclNet_v1x"), names=("PATH", "NCCL_OFI_A")
    )

    (plugin,) = nccl_plugins.parse((raw,))

    assert (plugin.interfaces, plugin.names) == ((), ("NCCL_OFI_A",))
