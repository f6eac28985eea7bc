"""What the pages tell people to type: it runs, and prints what the page shows.

A block fenced as `console` is run, all blocks of a page in one shell: in the tutorial in an empty folder beside
`configs`, in the README in the demo's folder, in a how-to after a rollout there. A block fenced as `console cluster`
needs nodes or GPUs, and one fenced as `console checkout` runs a script: of these only the names of commands, options
and scripts are checked.

Of the output, a line `...` stands for any lines and ` ...` at the end of a line for its rest. Numbers and the width of
gaps are not compared. `$ echo $?` behind a command tells its exit code; without it, the code is 0.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from topo_tune.cli.app import app

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted(
    path.relative_to(REPOSITORY)
    for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"))
    # Below a result lies its record: files of a run folder, not pages.
    if len(path.relative_to(REPOSITORY).parts) < 4 or path.relative_to(REPOSITORY).parts[1] != "results"
)
KINDS = ("console", "console cluster", "console checkout")
FENCE = re.compile(r"^```(console[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODES = ("mkdir", "-p", *(f"demo-nodes/n{number}/etc" for number in (1, 2, 3, 4)))
FILE = ("cp", "configs/clusters/replay-demo.yaml", "cluster.yaml")
SEARCH = ("topo-tune", "init", "--cluster-config", "cluster.yaml", "--output", "run", "--quiet")
BEFORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "empty": (),
    "demo": (NODES, FILE),
    "rolled out": (NODES, FILE, SEARCH, ("topo-tune", "apply", "run", "--yes", "--quiet")),
}
STATE_OF = {("docs", "tutorial"): "empty", ("docs", "how-to"): "rolled out"}


class Shown(NamedTuple):
    """A command as a page shows it, and the output below it."""

    page: Path
    kind: str
    command: str
    output: tuple[str, ...]


def shown_on(page: Path) -> Iterator[Shown]:
    for kind, body in FENCE.findall((REPOSITORY / page).read_text()):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            first, *rest = part.splitlines()
            more = [line[2:] for line in rest if line.startswith("> ")]
            output = tuple(line for line in rest if not line.startswith("> "))
            yield Shown(page, kind, "\n".join([first, *more]), output)


SHOWN = [shown for page in PAGES for shown in shown_on(page)]
RUN_PAGES = sorted({shown.page for shown in SHOWN if shown.kind == "console"})
INLINE = [
    (page, code)
    for page in PAGES
    for code in re.findall(r"`(topo-tune [^`]+)`", (REPOSITORY / page).read_text())
    if "docs/reference" not in str(page)
]


def known_commands() -> dict[str, set[str]]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        name: {word for parameter in command.params for word in parameter.opts} | {"--help", "-h"}
        for name, command in commands.items()
    }


def unknown_words(command: str) -> list[str]:
    """Words of a topo-tune command line that are neither a command nor an option of it."""
    program, *words = shlex.split(command)
    assert program == "topo-tune"
    if words and words[0] in ("--version", "--help"):
        return []
    known = known_commands()
    if not words or words[0] not in known:
        return words[:1] or ["no command"]
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("-")]
    return [option for option in options if option not in known[words[0]]]


def test_there_are_pages_whose_commands_are_run() -> None:
    assert {str(page) for page in RUN_PAGES} >= {"README.md", "docs/tutorial/first-rollout.md"}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_console_block_says_whether_it_can_be_run(page: Path) -> None:
    kinds = {kind for kind, _ in FENCE.findall((REPOSITORY / page).read_text())}
    assert kinds <= set(KINDS)


@pytest.mark.parametrize(
    "shown", [s for s in SHOWN if s.command.startswith("topo-tune")], ids=lambda s: s.command
)
def test_every_shown_command_and_option_exists(shown: Shown) -> None:
    assert unknown_words(shown.command) == [], shown.page


@pytest.mark.parametrize(("page", "code"), INLINE, ids=lambda value: str(value))
def test_every_command_in_the_text_exists(page: Path, code: str) -> None:
    assert unknown_words(code) == [], page


@pytest.mark.parametrize("shown", [s for s in SHOWN if s.command.startswith("./")], ids=lambda s: s.command)
def test_every_shown_script_is_there_and_can_be_run(shown: Shown) -> None:
    script = REPOSITORY / shlex.split(shown.command)[0]
    assert os.access(script, os.X_OK), shown.page


@pytest.mark.parametrize("page", RUN_PAGES, ids=str)
def test_what_a_page_shows_is_what_happens(page: Path, place: Place) -> None:
    wanted = [shown for shown in shown_on(page) if shown.kind == "console"]
    place.become(STATE_OF.get(page.parts[:2], "demo"))

    happened = run_in_one_shell([shown.command for shown in wanted], place)

    found = [differences(*row) for row in zip(wanted, happened, expected_codes(wanted), strict=True)]
    assert [difference for difference in found if difference is not None] == []


class Place:
    """One folder that becomes what a page expects. One, because a run folder names its nodes' folders in full."""

    def __init__(self, base: Path) -> None:
        self.work, self._kept = base / "work", base / "kept"
        self.environment = shell_environment(base)

    def become(self, state: str) -> None:
        """`empty` beside `configs`; `demo`: the demo's nodes; `rolled out`: after `init` and `apply` there."""
        if not (self._kept / state).exists():
            self._begin()
            for command in BEFORE[state]:
                self._run(command)
            shutil.copytree(self.work, self._kept / state, symlinks=True)
        shutil.rmtree(self.work)
        shutil.copytree(self._kept / state, self.work, symlinks=True)

    def _begin(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        (self.work / "configs").symlink_to(REPOSITORY / "configs")

    def _run(self, command: tuple[str, ...]) -> None:
        ran = subprocess.run(
            command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=False
        )
        # The guard trips in the demo's second rack.
        assert ran.returncode == (1 if command[:2] == ("topo-tune", "apply") else 0), ran.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("pages"))


def shell_environment(folder: Path) -> dict[str, str]:
    """`topo-tune` and `python3` are those of this test run; nothing of the caller's NCCL or home is seen."""
    programs = folder / "bin"
    programs.mkdir()
    for name, command in (("topo-tune", f"{sys.executable} -m topo_tune"), ("python3", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return {
        **kept,
        "PATH": f"{programs}:{kept['PATH']}",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
    }


def run_in_one_shell(commands: list[str], place: Place) -> list[tuple[int, str]]:
    """(exit code, what it printed on both streams) of each command."""
    mark = "@@ end of a command @@"
    # The last line gives the code back, for an `echo $?` that follows.
    after = f"__code=$?; printf '\\n%s %s\\n' '{mark}' \"$__code\"; (exit $__code)"
    script = "".join(f"{command}\n{after}\n" for command in commands)
    ran = subprocess.run(
        ["bash"],
        input=f"exec 2>&1\n{script}",
        cwd=place.work,
        env=place.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=240,
    )
    pieces = re.split(rf"\n{mark} (\d+)\n", ran.stdout)
    return [(int(code), text) for text, code in zip(pieces[::2], pieces[1::2], strict=False)]


def expected_codes(wanted: list[Shown]) -> list[int]:
    following = [*wanted[1:], None]
    return [
        int(after.output[0]) if after is not None and after.command == "echo $?" else 0 for after in following
    ]


def differences(shown: Shown, happened: tuple[int, str], code: int) -> str | None:
    """What is otherwise than shown; None when nothing is."""
    if happened[0] != code:
        return f"$ {shown.command}\nexit code {happened[0]}, expected {code}\n{happened[1]}"
    if re.fullmatch(as_pattern(shown.output), "".join(f"{line}\n" for line in plain_lines(happened[1]))):
        return None
    return f"$ {shown.command}\nshown:\n{chr(10).join(shown.output)}\nreal:\n{happened[1]}"


def as_pattern(output: tuple[str, ...]) -> str:
    parts = []
    for line in plain_lines("\n".join(output)):
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        elif line.endswith(" ..."):
            parts.append(re.escape(line.removesuffix(" ...")) + r".*\n")
        else:
            parts.append(re.escape(line) + r"\n")
    return "".join(parts)


def plain_lines(text: str) -> list[str]:
    lines = (re.sub(r"\d+(?:[.,]\d+)*", "#", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if line]
