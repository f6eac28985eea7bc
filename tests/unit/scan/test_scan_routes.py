"""IPv4 routes of the kernel's table and of `ip route`."""

from __future__ import annotations

import json

import pytest
from golden_facts import FACTS, SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.network import Route
from topo_tune.scan.answer import with_facts
from topo_tune.scan.facts.fact import Gathered, RawText
from topo_tune.scan.facts.network import routes

KERNEL = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT   \n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0   \n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0   \n"
    "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0   \n"
)
IP_ROUTE = (
    "default via 192.0.2.1 dev eth0 proto dhcp src 192.0.2.2 metric 100 \n"
    "10.0.0.0/8 dev eth1 proto kernel scope link src 10.0.0.1 \n"
    "10.9.8.7 via 10.0.0.254 dev eth1 \n"
    "169.254.0.0/16 dev eth0 scope link metric 1000 \n"
    "broken line\n"
)


def test_the_kernels_table_is_read() -> None:
    files = (RawText("/proc/net/route", "/proc/net/route", KERNEL),)

    scan = with_facts(node_scan(), Gathered(files=files), routes.FACTS)

    assert scan.routes == (
        Route("default", "eth0", gateway="192.0.2.1"),
        Route("192.0.2.0/24", "eth0"),
        Route("10.0.0.0/8", "eth1"),
    )


def test_ip_route_is_read_with_sources_and_gateways() -> None:
    assert routes.parse(IP_ROUTE) == (
        Route("default", "eth0", "192.0.2.2", "192.0.2.1"),
        Route("10.0.0.0/8", "eth1", "10.0.0.1"),
        Route("10.9.8.7/32", "eth1", None, "10.0.0.254"),
        Route("169.254.0.0/16", "eth0"),
    )


def test_json_of_ip_route_is_read() -> None:
    text = json.dumps(
        [
            {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"},
            {"dst": "10.0.0.0/8", "dev": "eth1"},
            {},
            1,
        ]
    )

    (kind,) = routes.KINDS
    assert kind.recognise(text)
    assert routes.parse(text) == (Route("default", "eth0", None, "192.0.2.1"), Route("10.0.0.0/8", "eth1"))


def test_a_text_without_routes_is_refused() -> None:
    with pytest.raises(InputError, match=r"a\.txt: no route: .*found `x`"):
        routes.parse("x\n", file="a.txt")


def test_only_routes_are_taken_for_routes() -> None:
    others = [file for file in SHARED.rglob("*") if file.is_file()] or list(FACTS.rglob("*.*"))
    (kind,) = routes.KINDS

    assert kind.recognise(IP_ROUTE)
    assert not any(kind.recognise(one.read_bytes().decode("utf-8", "replace")) for one in others)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([KERNEL, IP_ROUTE]) | st.text(max_size=300), st.integers(0, 400), st.text(max_size=30))
def test_damaged_texts_raise_nothing_but_refusals(text: str, place: int, inserted: str) -> None:
    damaged = text[:place] + inserted + text[place + 3 :]
    routes.parse_kernel(damaged)
    try:
        routes.parse(damaged)
    except InputError:
        pass


@pytest.mark.parametrize("piece", ["default dev ", "1.1.1.1 dev a\n", "[", "dev a dev  "])
def test_five_megabytes_are_read_or_refused(piece: str) -> None:
    try:
        assert len(routes.parse(piece * ((5 << 20) // len(piece)))) <= 2048
    except InputError:
        pass
