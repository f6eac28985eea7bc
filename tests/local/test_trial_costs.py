"""`scripts/trial-costs` from its first step to its page. GPUs, NCCL and torchrun are doubles, and the sizes small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_processes import DOUBLE
from script_modules import SCRIPTS, load_script

COSTS = load_script("trial-costs")
TINY = COSTS.Scale(
    agreement_bytes=(1024, 2048),
    tcp_bytes=(1024,),
    trial_bytes=(1024,),
    exact_bytes=(1024,),
    overlap_bytes=(1024,),
    repeats=1,
    single_calls=3,
    kept=2,
    other=2,
    communicators=3,
    sets=2,
)
REFERENCE = "1K=158,2K=170"
"""the double takes 160 us for everything"""


@pytest.fixture
def doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, and where the script writes there."""
    for name, value in {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": f"{DOUBLE}:{SCRIPTS.parent}",
        "DOUBLE_FOLDER": str(tmp_path),
        "DOUBLE_GPUS": "2",
        "NCCL_NVLS_ENABLE": "0",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "out"


def measured(folder: Path) -> Any:
    return msgspec.json.decode((folder / "trial-costs.json").read_bytes(), type=COSTS.Measured)


def rows(folder: Path, *words: str) -> list[list[str]]:
    """The lines of the page's tables that begin with these words."""
    lines = (folder / "trial-costs.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [line for line in cells if line[: len(words)] == list(words)]


def test_every_step_is_measured_and_told(doubles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = COSTS.main([str(doubles), "--reference", REFERENCE], TINY)

    found = measured(doubles)
    assert (found.problems, code) == ([], 0)
    assert len(found.costs) == 2 * len(COSTS.WAYS)
    assert [len(one.sets) for one in found.spread] == [2, 2]
    assert {times.what for times in found.exact} == {one.value for one in COSTS.Collective}
    assert {times.dtype for times in found.exact} == {"bfloat16", *COSTS.TYPES}
    assert found.agreement[0].in_force == {"NCCL_NVLS_ENABLE": "0"}
    assert capsys.readouterr().out.startswith("# Agreement with nccl-tests")
    assert rows(doubles, "1K") == [
        ["1K", "160 us", "158 us", "+1.3%", "graph", "yes"],
        ["1K", "160 us", "", "", "graph", "yes"],
    ]
    assert rows(doubles, "nccl-tests' times within 5%")[0][1:] == [
        "-5.9% to +1.3%",
        "no: 1 of 2 sizes are faster by more",
    ]
    assert rows(doubles, "every result exact")[0][1:] == ["20 of 20", "yes"]
    assert len(rows(doubles, "two-node TCP", "launch again by torchrun")) == 1
    assert rows(doubles, "4 CTAs")[0][1:] == [
        "1K",
        "160 us",
        "160 us",
        "500 us",
        "500 us",
        "160 us",
        "160 us",
    ]


def test_a_page_is_made_again_of_what_was_measured(doubles: Path) -> None:
    COSTS.main([str(doubles), "--seconds", "0"], TINY)
    before = (doubles / "trial-costs.md").read_text()
    (doubles / "trial-costs.md").unlink()

    code = COSTS.main([str(doubles), "--page-only"])

    assert (code, (doubles / "trial-costs.md").read_text()) == (1, before)


def test_what_there_is_no_time_for_is_left_out_and_named(doubles: Path) -> None:
    code = COSTS.main([str(doubles), "--seconds", "0"], TINY)

    assert code == 1
    assert measured(doubles).problems[:2] == [
        "agreement, NVLink: left out, the time was up",
        "agreement, two-node TCP: left out, the time was up",
    ]


def test_a_step_that_fails_takes_no_other_with_it_and_a_wrong_result_is_told(
    doubles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COSTS, "TORCHRUN", ("torch.no_such_module",))
    monkeypatch.setenv("DOUBLE", "wrong@1")

    code = COSTS.main([str(doubles)], TINY._replace(sets=1, communicators=1))

    found = measured(doubles)
    assert code == 1
    assert found.problems[:3] == [
        "launch again by torchrun, NVLink: RuntimeError: torchrun ended with status 1",
        "launch again by torchrun, two-node TCP: RuntimeError: torchrun ended with status 1",
        # a set of processes ends behind a wrong result
        "new communicator, kept, NVLink: RuntimeError: 1 of 2 settings were measured",
    ]
    assert {cost.way for cost in found.costs} == {"fork"}
    assert rows(doubles, "every result exact")[0][2] == "**no**"
    assert rows(doubles, "NVLink", "", "0")[0][4] == "too few sets"
