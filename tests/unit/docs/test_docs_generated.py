"""Pages made from the code: they are up to date, and `scripts/docs --check` names one that is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
REFERENCE = REPOSITORY / "docs" / "reference"


def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "docs"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_reference_pages_are_up_to_date() -> None:
    checked = docs("--check")

    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_page_that_is_out_of_date_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE, tmp_path / "reference")
    page = folder / "errors.md"
    page.write_text(page.read_text() + "one more line\n")

    checked = docs("--check", "--into", str(folder))

    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [f"out of date: {page}; `scripts/docs` writes it again"]
    assert page.read_text().endswith("one more line\n")


def test_pages_are_written_where_they_are_missing(tmp_path: Path) -> None:
    written = docs("--into", str(tmp_path / "reference"))

    assert written.returncode == 0
    assert docs("--check", "--into", str(tmp_path / "reference")).returncode == 0
    assert (tmp_path / "reference" / "cli.md").read_bytes() == (REFERENCE / "cli.md").read_bytes()
