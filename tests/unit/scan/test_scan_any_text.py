"""Whatever text a saved file holds: it is read, or refused with a reason; rules and reports take what was read."""

from __future__ import annotations

import functools
import random
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from golden_facts import beside_the_repository
from hypothesis import given, settings
from hypothesis import strategies as st
from report_text import text_of as shown
from saved_file_trials import BEGINNING, beginning
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.findings.judge import find
from topo_tune.records.document import Document
from topo_tune.records.envelope import SCHEMAS
from topo_tune.records.scan import Scan
from topo_tune.report.node import node_report
from topo_tune.report.scan import scan_report
from topo_tune.report.scan_markdown import scan_markdown
from topo_tune.scan.from_files import scan_from
from topo_tune.scan.saved_file import kind_of
from topo_tune.scan.saved_file import text_of as unpacked
from topo_tune.scan.saved_kinds import KINDS

FILES = [file for file in beside_the_repository(".") if file.name != "SOURCES.md"]
NOISE = (
    "\x1b[31m",
    "\r\n",
    "\0",
    " 3: ",
    "[1,3]<stdout>:",
    "9" * 5000,
    "\N{SNOWMAN}",
    "<!DOCTYPE x>",
    "NCCL_ALGO=x",
)


@functools.cache
def texts() -> list[str]:
    return [unpacked(file.read_bytes())[: 64 << 10] for file in FILES]


def read(text: str) -> Scan | None:
    """What the text's kind makes of it, or None where it is refused with a reason."""
    try:
        kind = kind_of(text)
        if kind.tell is not None:
            return Scan("fuzz", (kind.tell(node_scan("fuzz"), text, "fuzz.txt"),))
        assert kind.document is not None
        body, problems = kind.document(text, "fuzz.txt")
    except InputError:
        return None
    return Scan("fuzz", (), documents=(Document("fuzz.txt", "fuzz", kind.name, body, problems),))


def mutated(seed: int) -> str:
    """A real text with some of its lines cut, doubled, moved, glued or spoilt."""
    chance = random.Random(seed)
    lines = chance.choice(texts()).split("\n")[: chance.choice((20, 400, 4000))]
    for _ in range(chance.randint(1, 12)):
        place = chance.randrange(len(lines))
        change = chance.randrange(6)
        if change == 0:
            lines[place] = lines[place][: chance.randrange(len(lines[place]) + 1)]
        elif change == 1:
            lines.insert(place, chance.choice(lines))
        elif change == 2:
            lines[place : place + 2] = ["".join(lines[place : place + 2])]
        elif change == 3:
            at = chance.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:at] + chance.choice(NOISE) + lines[place][at:]
        elif change == 4:
            lines = lines[: place + 1]
        else:
            chance.shuffle(lines)
    return "\n".join(lines)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_a_spoilt_real_file_is_read_or_refused_and_everything_behind_takes_it(seed: int) -> None:
    scan = read(mutated(seed))

    if scan is not None:
        found = find(scan)
        assert shown(scan_report(scan, None))
        assert scan_markdown(scan)
        for node in scan.nodes:
            assert shown(node_report(node))
        assert all(finding.what for finding in found)


MARKS = (
    "",
    "\n## lscpu\n",
    "\n```\n",
    "\n$ ibstat\n",
    "\n===== ulimit -a =====\n",
    "\n# cat /etc/nccl.conf\n",
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(MARKS), st.integers(0, 2**32)), min_size=2, max_size=5), st.booleans()
)
def test_spoilt_outputs_in_one_file_are_read_or_refused(
    parts: list[tuple[str, int]], is_labelled: bool
) -> None:
    text = "".join(f"{mark}{mutated(seed)}" for mark, seed in parts)
    if is_labelled:
        text = "".join(f"n{number % 3}: {line}\n" for number, line in enumerate(text.split("\n")))

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "report.md").write_text(text)
        try:
            scan = scan_from(folder)
        except InputError:
            return

    assert shown(scan_report(scan, None))
    assert msgspec.json.decode(msgspec.json.encode(scan), type=Scan) == scan


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=2000))
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_one_or_the_other(kind) -> None:  # type: ignore[no-untyped-def]
    assert (kind.tell is None) != (kind.document is None)


def test_real_files_meet_two_dozen_kinds() -> None:
    met = {kind_of(text).name for text in texts() if _is_known(text)}

    assert len(met) >= 24


def _is_known(text: str) -> bool:
    try:
        kind_of(text)
    except InputError:
        return False
    return True


def test_a_scan_of_all_real_files_survives_its_own_record(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "dump"
    for position, file in enumerate(FILES):
        (folder / f"f{position}").mkdir(parents=True)
        (folder / f"f{position}" / file.name).write_bytes(file.read_bytes())

    scan = scan_from(folder)
    back = msgspec.json.decode(msgspec.json.encode(scan), type=SCHEMAS["topo-tune/scan"][0])

    assert back == scan
    assert len(scan.nodes) + len({d.node for d in scan.documents}) >= len(FILES) - 1


@pytest.mark.parametrize("piece", ["\n", " \n", "\t", "1 ", "a", "#\n", "a=\n", ": ", "[", "|"])
def test_no_kind_takes_long_to_recognise_what_repeats_itself(piece: str) -> None:
    text = beginning(piece * (BEGINNING // len(piece)))
    start = time.process_time()

    for kind in KINDS:
        kind.recognise(text)

    assert time.process_time() - start < 4
