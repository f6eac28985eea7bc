"""Node health check lists of NHC."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HealthChecks
from topo_tune.scan.documents.health_checks import parse, recognise

FILES = sorted((FACTS / "health").glob("azure-nhc-*.conf"))


def checks_of(name: str) -> list[str]:
    checks, problems = parse(text_of(FACTS / "health" / name), name)
    assert problems == ()
    assert {mask for mask, _ in checks.checks} == {"*"}
    return [check for _, check in checks.checks]


def test_what_an_h100_machine_must_have() -> None:
    checks = checks_of("azure-nhc-nd96isr_h100_v5.conf")

    assert len(checks) == 34
    assert checks[0] == "check_hw_cpuinfo 2 96 96"
    assert [check for check in checks if check.startswith("check_hw_ib")] == [
        f"check_hw_ib 400 mlx5_ib{index}:1" for index in range(8)
    ]
    assert {
        "check_gpu_count 8",
        "check_gpu_bw 48 335",
        "check_gpu_ecc 20000000 10000",
        "check_nccl_allreduce 460.0 1 16G $AZ_NHC_ROOT/topofiles/ndv5-topo.xml",
        "check_ib_bw_gdr 380",
        "check_nvme_count 8",
    } <= set(checks)


def test_what_an_a100_machine_must_have() -> None:
    checks = checks_of("azure-nhc-nd96asr_v4.conf")

    assert [check for check in checks if check.startswith("check_hw_ib")] == [
        f"check_hw_ib 200 mlx5_ib{index}:1" for index in range(8)
    ]
    assert "check_gpu_bw 21 235" in checks


def test_what_a_v100_machine_must_have() -> None:
    checks = checks_of("azure-nhc-nd40rs_v2.conf")

    assert len(checks) == 17
    assert "check_hw_ib 100 mlx5_ib0:1" in checks
    assert "check_gpu_bw 9" in checks


def test_masks_of_every_sort() -> None:
    text = (
        "* || export MARK_OFFLINE=1\n"
        "gpu*||check_gpu_count 8\n"
        "{gpu[001-016]} || check_hw_ib  400\tmlx5_0:1\n"
        "/^(gpu|dgx)/ || check_a || check_b\n"
    )

    assert parse(text, "nhc.conf")[0].checks == (
        ("*", "export MARK_OFFLINE=1"),
        ("gpu*", "check_gpu_count 8"),
        ("{gpu[001-016]}", "check_hw_ib 400 mlx5_0:1"),
        ("/^(gpu|dgx)/", "check_a || check_b"),
    )


def test_a_line_without_a_check_is_a_problem() -> None:
    checks, problems = parse("* || check_a\ncheck_b\n* ||\n", "nhc.conf")

    assert checks.checks == (("*", "check_a"),)
    assert problems == ("line 2: `check_b` is not `mask || check`", "line 3: `* ||` is not `mask || check`")


def test_a_text_without_checks_is_refused() -> None:
    with pytest.raises(InputError, match="no check in it"):
        parse("# * || check_a\n", "nhc.conf")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_its_files_are_recognised(file) -> None:  # type: ignore[no-untyped-def]
    assert recognise(beginning(text_of(file)))


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\nset -e\nnvidia-smi || check_gpu\n",
        "cd /opt || exit 1\n",
        "a || b\n",
        "",
        "|| check_a\n",
    ],
)
def test_scripts_are_no_lists(text: str) -> None:
    assert not recognise(text)


@pytest.mark.parametrize(
    "text", [*huge("* || check_a"), *huge("|"), *huge("a ")], ids=lambda t: f"{t[:9]!r}-{len(t)}"
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or len(read[0].checks) <= 4096


@settings(max_examples=60, deadline=None)
@given(damaged([text_of(file) for file in FILES]))
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], HealthChecks)
