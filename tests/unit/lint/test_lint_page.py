"""The page of rules holds every rule, as the code has it."""

from __future__ import annotations

from pathlib import Path

from topo_tune.lint.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "lint-rules.md"


def test_the_page_lists_the_rules_of_the_code() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    assert rows == [
        f"| `{rule}` | {known.severity.value} | {known.meaning} |" for rule, known in RULES.items()
    ]
