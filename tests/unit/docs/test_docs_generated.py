"""Pages made from the code: they are up to date, and `scripts/docs --check` names one that is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "docs"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_reference_pages_are_up_to_date() -> None:
    checked = docs("--check")

    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_page_that_is_out_of_date_is_named_and_left_alone(tmp_path: Path) -> None:
    docs("--into", str(tmp_path))
    page = tmp_path / "errors.md"
    page.write_text(page.read_text() + "one more line\n")

    checked = docs("--check", "--into", str(tmp_path))

    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [f"out of date: {page}; `scripts/docs` writes it again"]
    assert page.read_text().endswith("one more line\n")


def test_a_missing_page_is_out_of_date_until_it_is_written(tmp_path: Path) -> None:
    before = docs("--check", "--into", str(tmp_path / "new"))
    written = docs("--into", str(tmp_path / "new"))
    after = docs("--check", "--into", str(tmp_path / "new"))

    assert (before.returncode, written.returncode, after.returncode) == (1, 0, 0)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "cli.md",
        "cluster-file.schema.json",
        "errors.md",
        "findings.md",
        "nccl-variables.md",
        "records.md",
        "saved-files.md",
    ]
