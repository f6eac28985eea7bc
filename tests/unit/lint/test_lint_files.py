"""Files of settings as providers publish them: what lint says about each, reviewed by hand as golden files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_facts import FACTS, beside_the_repository, text_of

from topo_tune.lint.check import lint
from topo_tune.lint.message import Format
from topo_tune.lint.setting import Target
from topo_tune.records.finding import Severity

FILES = sorted(
    file
    for file in (FACTS / "config").iterdir()
    if file.suffix in (".conf", ".env", ".sh", ".txt") and "tuner" not in file.name
)
NEWEST = Target((2, 30, 7))
FORMATS = {
    "azure-grace-blackwell.env": Format.SHELL,
    "azure-hopper.env": Format.SHELL,
    "cscs-slingshot-env.sh": Format.SHELL,
    "gcp-a3mega-tcpxo-env.txt": Format.ARGS,
    "gke-a3high-tcpx-mpirun-x.txt": Format.ARGS,
}
"""All others are nccl.conf."""

WORSE_THAN_A_NOTICE = {
    "gcp-a3mega-tcpxo-env.txt": {"missing-comma"},
    **{f"oci-nccl-conf-{shape}.conf": {"unexpanded"} for shape in ("b200", "b300", "h100", "h200")},
}
"""What is really wrong: an item of the list without its comma, and templates that are not filled in."""


def shown(file: Path) -> dict[str, Any]:
    linted = lint(text_of(file), NEWEST, path=file.name)
    return {
        "format": linted.format.value,
        "settings": linted.settings,
        "messages": [
            f"{said.line}:{said.column} {said.severity.value} {said.rule}: {said.text}"
            for said in linted.messages
        ],
    }


def test_there_are_fifteen_files() -> None:
    assert len(FILES) == 15


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_lint_says_is_as_reviewed(file: Path, golden: Callable[[str, str], None]) -> None:
    golden(f"facts/config/{file.name}.json", json.dumps(shown(file), indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_format_is_told_by_the_content(file: Path) -> None:
    assert lint(text_of(file), NEWEST).format is FORMATS.get(file.name, Format.CONF)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_raises_a_false_alarm(file: Path) -> None:
    linted = lint(text_of(file), NEWEST, path=file.name)

    worse = {said.rule for said in linted.messages if said.severity is not Severity.NOTICE}
    assert worse == WORSE_THAN_A_NOTICE.get(file.name, set())


def test_values_are_those_that_the_shell_makes() -> None:
    messages = lint(text_of(FACTS / "config" / "azure-hopper.env"), NEWEST).messages

    assert "2097152 is more than an eighth of the default buffer; NCCL takes 524288" in [
        m.text for m in messages
    ]


def test_a_table_of_a_tuner_is_no_file_of_settings() -> None:
    text = text_of(FACTS / "config" / "cscs-nccl-tuner-v226.conf")

    assert "nothing-found" in {said.rule for said in lint(text, NEWEST).messages}


@pytest.mark.parametrize("file", beside_the_repository("."), ids=lambda file: file.name)
def test_no_file_of_any_kind_breaks_it(file: Path) -> None:
    linted = lint(text_of(file), NEWEST, path=file.name)

    assert all(said.text for said in linted.messages)
