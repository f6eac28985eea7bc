"""`topo-tune explain` from the outside."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from topo_tune.cli.app import run
from topo_tune.lint.explanation import explain, groups
from topo_tune.records.catalogue import catalogue
from topo_tune.report.explain import explained


def test_a_variable_is_told_with_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "min_ctas"]) == 0

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "NCCL_MIN_CTAS (channels)",
        "  what          The fewest thread blocks (SMs) that a collective takes",
        "  to know       Overrides ncclConfig minCTAs. Values <= 0 ignored with an INFO line; above maxCTAs both "
        "become maxCTAs. Applied after the last cross-rank exchange, so a mismatch is not repaired.",
        "  takes         a whole number: 1..64 (32 before 2.25)",
        "  default       unset (1)",
        "  versions      since 2.17, first release with it 2.17.1",
        "  read          once, at its first use in a process; with NCCL_NO_CACHE at each use",
        "  in a program  ncclConfig_t.minCTAs; the environment beats it",
        "  acts on       traffic within a node and between nodes",
        "  across ranks  must be the same (inferred from NCCL's source)",
        "  a bad value   is ignored",
        "  documented    in NVIDIA's guide",
        "  in a search   tried: 1, 2, 4, 8, 16, 24, 32, 64",
        "  NVIDIA says   for debugging and experiments; not for production",
        "  source        NVIDIA/nccl 2.30.7: src/init.cc",
    ]


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [
        ("NCCL_BUFF_SIZE", "NCCL_BUFFSIZE", 0),
        ("NCCL_IB_GDR_LEVEL", "NCCL_NET_GDR_LEVEL", 0),
        ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", 0),
        ("NCCL_FASTRAK_NUM_FLOWS", "GPUDirect-TCPXO", 0),
        ("NCCL_IB_TIMOUT", "NCCL_IB_TIMEOUT", 1),
    ],
)
def test_what_is_meant_is_told(name: str, part: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == code
    assert part in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "step"),
    [("foo", "topo-tune explain --list"), ("NCCL_IB_TIMOUT", "topo-tune explain NCCL_IB_TIMEOUT")],
)
def test_an_unknown_name_has_a_next_step(name: str, step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 1
    assert f"`{step}`" in capsys.readouterr().out


def test_several_names_are_several_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "NCCL_ALGO", "NCCL_PROTO"]) == 0

    blocks = capsys.readouterr().out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["NCCL_ALGO (algo)", "NCCL_PROTO (protocol)"]


def test_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "NCCL_ALGO", "NCCL_BUFF_SIZE", "--json"]) == 0

    algorithm, misnomer = json.loads(capsys.readouterr().out)
    assert algorithm["variable"]["read_when"] == "comm_init"
    assert (misnomer["kind"], misnomer["use"]) == ("misnomer", "NCCL_BUFFSIZE")


def test_a_group_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--list", "Protocol"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("protocol:\n  NCCL_PROTO         Which protocols (LL, LL128, Simple)")
    assert "NCCL_ALGO" not in out


def test_without_a_group_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--list"]) == 0

    out = capsys.readouterr().out
    assert [name for name in catalogue() if f"  {name} " not in out] == []
    assert [group for group in groups() if f"{group}:\n" not in out] == []


def test_a_list_as_json_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--list", "algo", "--json"]) == 0

    listed = json.loads(capsys.readouterr().out)
    assert listed["algo"][0]["name"] == "NCCL_ALGO"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [([], "no name is given"), (["--list", "protocols"], "did you mean `protocol`?")],
)
def test_bad_usage_exits_2(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_every_variable_fits_eighty_columns() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        for part in explained(explain(name) for name in catalogue()):
            console.print(part)

    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith(("None", "..."))] == []
