"""The pages as texts: links lead somewhere, decisions have their parts, nothing of one machine is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from topo_tune import errors
from topo_tune.cli.app import app

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted(
    path.relative_to(REPOSITORY)
    for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"))
    # Below a result lies its record: files of a run folder, not pages.
    if len(path.relative_to(REPOSITORY).parts) < 4 or path.relative_to(REPOSITORY).parts[1] != "results"
)
DECISIONS = [page for page in PAGES if page.parent.name == "decisions"]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
OF_ONE_MACHINE = re.compile(r"/work/|/tmp/|/root/|/home/[a-z]|\bpypi\b|artifactory|registry\.", re.IGNORECASE)


def text_of(page: Path) -> str:
    return (REPOSITORY / page).read_text()


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


LINKS = [
    (page, target)
    for page in PAGES
    for target in LINK.findall(without_code(text_of(page)))
    if not target.startswith(("http://", "https://", "mailto:"))
]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=lambda value: str(value))
def test_every_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = (REPOSITORY / page).parent / path if path else REPOSITORY / page

    assert file.exists()
    assert not anchor or anchor in anchors(file)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_path_of_one_machine_or_those_who_wrote_it(page: Path) -> None:
    assert OF_ONE_MACHINE.findall(text_of(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_page_has_one_title_at_its_top(page: Path) -> None:
    lines = without_code(text_of(page)).splitlines()
    titles = [line for line in lines if line.startswith("# ")]

    assert page.parent.name == "changelog" or titles == lines[:1]


@pytest.mark.parametrize("page", DECISIONS, ids=str)
def test_every_decision_has_its_five_parts_in_order(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", text_of(page), re.MULTILINE)

    assert headings == ["Status", "Context", "Options", "Decision", "Consequences"]
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", page.name)
    assert text_of(page).startswith(f"# {page.name[:4]}: ")


def test_the_index_names_every_page() -> None:
    index = text_of(Path("docs/README.md"))
    named = {(Path("docs") / target).as_posix() for target in LINK.findall(index)}
    pages = {p.as_posix() for p in PAGES if p.parts[0] == "docs" and p.parent.name != "changelog"}

    assert pages - named - {"docs/README.md"} == set()


def test_the_command_line_page_names_every_command_and_option() -> None:
    page = text_of(Path("docs/reference/cli.md"))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    for name, command in commands.items():
        section = page.partition(f"\n## topo-tune {name}\n")[2].partition("\n## ")[0]
        words = [word for parameter in command.params for word in parameter.opts if word.startswith("-")]
        assert [word for word in words if not re.search(rf"{re.escape(word)}\b", section)] == [], name


def test_the_command_line_page_names_no_option_that_is_not_there() -> None:
    page = text_of(Path("docs/reference/cli.md"))
    top = typer.main.get_command(app)
    commands = [top, *top.commands.values()]  # type: ignore[attr-defined]
    known = {word for command in commands for parameter in command.params for word in parameter.opts}

    assert set(re.findall(r"^  .*?(--[a-z-]+)", page, re.MULTILINE)) - known <= {"--help"}


def test_the_errors_page_names_every_exit_code_and_error() -> None:
    page = text_of(Path("docs/reference/errors.md"))
    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    kinds = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]

    assert [code for code in codes if f"| {code} |" not in page] == []
    assert [kind for kind in kinds if f"`{kind}`" not in page] == []


def test_the_readme_shows_the_minimal_cluster_file_as_it_is() -> None:
    assert f"```yaml\n{text_of(Path('configs/clusters/minimal.yaml'))}```" in text_of(Path("README.md"))
