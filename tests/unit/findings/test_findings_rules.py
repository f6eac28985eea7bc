"""Every rule has a case in which it fires, one in which it must not, and all that an operator needs, in one style."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from topo_tune.errors import InputError
from topo_tune.findings.judge import find, rules_without
from topo_tune.findings.rule import Rule
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
def test_a_rule_fires_where_it_should(rule: Rule) -> None:
    found = find(FIRES[rule.id], rules=[rule])

    assert found
    assert all(finding.rule == rule.id for finding in found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_quiet_where_it_must_be(rule: Rule) -> None:
    assert find(QUIET[rule.id], rules=[rule]) == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_why_how_and_whence(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    assert rule.title
    assert rule.why
    assert rule.fix
    assert all(rule.fix)
    assert _ADDRESS.match(rule.source), "a public address, or a repository with a path"


def test_a_rule_that_is_not_there_is_answered_with_where_all_are_written_down() -> None:
    with pytest.raises(InputError) as raised:
        rules_without(["zzz-qqq"])

    assert "docs/reference/findings.md" in str(raised.value.hint)


# --- style --------------------------------------------------------------------------------------------------

_ADDRESS = re.compile(r"https://|[\w.-]+/[\w.-]+: ")
"""`https://...`, or `NVIDIA/nccl: src/init.cc`."""

_NAMES = {"Linux", "Slurm", "Docker", "Kubernetes", "Xid", "Ethernet", "Ansible"}
"""Names with one capital. A word with two, such as NCCL, GPUs or InfiniBand, is a name anyway."""

_LITERAL = re.compile(
    r"NCCL_[A-Z]|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|/(?:etc|dev|opt|sys|var|proc)/|~/\.|\bnvidia[-_]peermem\b"
)
"""What stands in backticks: variables, files, modules."""

_PLACEHOLDER = re.compile(r"<(?:index|address|device|interface|node|file|path)[^>]*>", re.I)
"""Placeholders are words in capitals: DEVICE, IF, ADDRESS, INDEX."""


def _style(text: str) -> Iterator[str]:
    """What is wrong with how a sentence is written."""
    outside = re.sub(r"`[^`]*`", "`", text)
    first = text.split()[0]
    if first[0].isupper() and sum(letter.isupper() for letter in first) < 2 and first not in _NAMES:
        yield "begins with a capital"
    if text.endswith(".") and not text.endswith("..."):
        yield "ends with a full stop"
    if re.search(r"[a-z)`]\. [A-Z]", text):
        yield "is two sentences: join them by `;`"
    if text.count("`") % 2:
        yield "has an open backtick"
    if literal := _LITERAL.search(outside):
        yield f"has `{literal.group()}` outside of backticks"
    if _PLACEHOLDER.search(text):
        yield "has a placeholder in small letters"
    if "  " in outside or text != text.strip():
        yield "has blanks too many"
    if "sudo " in text:
        yield "says sudo, which the reader knows"


def _faults(*texts: str) -> list[str]:
    return [f"{fault}: {text}" for text in texts for fault in _style(text)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_worded_in_the_house_style(rule: Rule) -> None:
    assert _faults(rule.title, rule.why, *rule.fix) == []
    assert len(rule.title) <= 90


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_a_rule_finds_is_worded_in_the_house_style(rule: Rule) -> None:
    found = find(FIRES[rule.id], rules=[rule])

    assert _faults(*(finding.what for finding in found)) == []
    # A cause that a log tells brings its own advice, which is the log reader's.
    assert rule.id == "job-failed" or _faults(*(step for finding in found for step in finding.fix)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_a_rule_finds_names_no_node(rule: Rule) -> None:
    """Nodes that show the same are told together."""
    for finding in find(FIRES[rule.id], rules=[rule]):
        assert not any(node in finding.what for node in finding.nodes) or rule.id in _TELLS_SIDES


_TELLS_SIDES = {rule.id for rule in RULES if rule.id.startswith("drift-")}
"""Where no value has most nodes, every side is told with its nodes."""
