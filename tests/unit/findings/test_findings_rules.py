"""Every rule has a case in which it fires and one in which it must not, and all that an operator needs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from topo_tune.findings.judge import find
from topo_tune.findings.rules import RULES
from topo_tune.records.scan import Scan


def _cases() -> list[ModuleType]:
    """The test modules of the themes; each holds FIRES and QUIET, rule ID to scan."""
    modules = []
    for path in sorted(Path(__file__).parent.glob("test_findings_about_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules.append(module)
    return modules


MODULES = _cases()
FIRES: dict[str, Scan] = {rule: scan for module in MODULES for rule, scan in module.FIRES.items()}
QUIET: dict[str, Scan] = {rule: scan for module in MODULES for rule, scan in module.QUIET.items()}


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]

    assert sorted(set(ids)) == sorted(ids)


def test_every_rule_has_both_cases() -> None:
    ids = {rule.id for rule in RULES}

    assert set(FIRES) == ids
    assert set(QUIET) == ids


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_fires_where_it_should(rule) -> None:  # type: ignore[no-untyped-def]
    found = find(FIRES[rule.id], rules=[rule])

    assert found
    assert all(finding.rule == rule.id for finding in found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_quiet_where_it_must_be(rule) -> None:  # type: ignore[no-untyped-def]
    assert find(QUIET[rule.id], rules=[rule]) == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_why_how_and_whence(rule) -> None:  # type: ignore[no-untyped-def]
    assert rule.title[0].islower() or rule.title.split()[0].isupper() or "'" in rule.title
    assert not rule.title.endswith(".")
    assert rule.why
    assert rule.fix
    assert rule.source
