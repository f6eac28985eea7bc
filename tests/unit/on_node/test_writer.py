"""The node's writer over real folders."""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.connect.program import find_answer, program_command
from topo_tune.on_node import nccl_conf, writer

WANTED = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "8"}
BLOCK = (
    "# topo-tune begin: merged from /etc/nccl/conf.d, edit there\n"
    "NCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_NTHREADS=4\n"
    "# topo-tune end\n"
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "etc").mkdir()
    return tmp_path


def ask(capsys: pytest.CaptureFixture[str], **request: object) -> dict:
    writer.main(io.BytesIO(json.dumps(request).encode()))
    answer = find_answer(capsys.readouterr().out.encode())
    assert answer is not None
    return answer


@pytest.fixture
def asked(capsys, root):
    return lambda op, **fields: ask(capsys, op=op, root=str(root), **fields)


def put(root: Path, path: str, content: bytes, mode: int = 0o644) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    place.chmod(mode)
    return place


def write_request(plan: dict) -> dict:
    before = {state["path"]: state for state in plan["before"]}
    files = [
        {
            "path": after["path"],
            "expected_sha256": before[after["path"]]["sha256"],
            **{key: after[key] for key in ("content_base64", "mode", "uid", "gid")},
        }
        for after in plan["after"]
    ]
    return {"files": files, "make_directories": plan["made_directories"]}


def restore_request(plan: dict) -> dict:
    files = [
        {
            "path": before["path"],
            "before": before,
            "expected_sha256": after["sha256"],
            "written_base64": after["content_base64"],
        }
        for before, after in zip(plan["before"], plan["after"], strict=True)
    ]
    return {"files": files, "directories": plan["made_directories"]}


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path below root with its kind, mode, owner and bytes or link target."""
    found: dict[str, tuple[object, ...]] = {}
    for place in sorted(root.rglob("*")):
        status = place.lstat()
        held: object = None
        if place.is_symlink():
            held = os.readlink(place)
        elif place.is_file():
            held = place.read_bytes()
        found[str(place.relative_to(root))] = (oct(status.st_mode), status.st_uid, status.st_gid, held)
    return found


def content(states: list[dict], path: str) -> bytes:
    return base64.b64decode(next(s for s in states if s["path"] == path)["content_base64"])


# --- plan ---


def test_a_plan_for_a_bare_node_names_both_files_and_the_directories_to_be_made(asked, root):
    plan = asked("plan", settings=WANTED)

    assert [state["exists"] for state in plan["before"]] == [False, False]
    assert content(plan["after"], writer.FRAGMENT) == b"NCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_NTHREADS=4\n"
    assert content(plan["after"], writer.SYSTEM_FILE) == BLOCK.encode()
    assert [state["mode"] for state in plan["after"]] == [0o644, 0o644]
    assert plan["made_directories"] == ["/etc/nccl", "/etc/nccl/conf.d"]
    assert plan["conflicts"] == []


def test_a_plan_changes_nothing(asked, root):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN")
    before = tree(root)

    asked("plan", settings=WANTED)

    assert tree(root) == before


def test_all_fragments_are_merged_in_name_order_and_the_first_name_wins(asked, root):
    put(root, "/etc/nccl/conf.d/10-site.conf", b"NCCL_IB_HCA==mlx5_0\nNCCL_DEBUG=WARN\n")
    put(root, "/etc/nccl/conf.d/90-late.conf", b"NCCL_DEBUG=INFO\nNCCL_CROSS_NIC=1\n")
    put(root, "/etc/nccl/conf.d/90-late.conf.bak", b"NCCL_DEBUG=TRACE\n")

    after = content(asked("plan", settings=WANTED)["after"], writer.SYSTEM_FILE).decode()

    assert [(name, value) for _, name, value in nccl_conf.parse(after)] == [
        ("NCCL_IB_HCA", "=mlx5_0"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_NSOCKS_PERTHREAD", "8"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("NCCL_CROSS_NIC", "1"),
    ]


def test_a_fragment_that_nccl_never_read_is_announced_before_it_comes_into_force(asked, root):
    put(root, "/etc/nccl/conf.d/10-site.conf", b"NCCL_CROSS_NIC=1\n")

    notes = asked("plan", settings=WANTED)["notes"]

    assert notes == ["the merge changes `NCCL_CROSS_NIC` in /etc/nccl.conf as well: from unset to `1`"]


def test_a_line_of_a_fragment_that_nccl_would_misread_is_left_out_and_named(asked, root):
    put(root, "/etc/nccl/conf.d/10-site.conf", b"export NCCL_DEBUG=INFO\n")

    plan = asked("plan", settings=WANTED)

    assert content(plan["after"], writer.SYSTEM_FILE) == BLOCK.encode()
    assert "/etc/nccl/conf.d/10-site.conf:1 begins with `export`" in plan["notes"][0]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("/etc/nccl.conf", b"# mine\nNCCL_SOCKET_NTHREADS=2\n", 2),
        ("/etc/nccl.conf", BLOCK.encode() + b"\nNCCL_SOCKET_NTHREADS=4\n", 6),
        ("/etc/nccl/conf.d/10-site.conf", b"NCCL_SOCKET_NTHREADS=2\n", 1),
        ("/home/me/.nccl.conf", b"\n\nNCCL_SOCKET_NTHREADS=2\n", 3),
        ("/home/you/.nccl.conf", b"NCCL_SOCKET_NTHREADS=2\n", 1),
    ],
    ids=["before the block", "behind the block", "another fragment", "own home", "another home"],
)
def test_a_name_that_somebody_else_sets_is_a_conflict_with_file_and_line(asked, root, path, text, line):
    put(root, path, text)

    conflicts = asked("plan", settings=WANTED, homes=["/home/you"])["conflicts"]

    assert len(conflicts) == 1
    assert conflicts[0].startswith("`NCCL_SOCKET_NTHREADS` is set to `")
    assert conflicts[0].endswith(f"{path}:{line}")


def test_the_same_value_in_another_fragment_is_no_conflict(asked, root):
    put(root, "/etc/nccl/conf.d/10-site.conf", b"NCCL_SOCKET_NTHREADS=4\n")

    assert asked("plan", settings=WANTED)["conflicts"] == []


def test_a_name_in_the_environment_is_a_conflict_even_when_it_is_empty(asked, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_NTHREADS", "")

    conflicts = asked("plan", settings=WANTED)["conflicts"]

    assert conflicts == ["`NCCL_SOCKET_NTHREADS` is set to `` by the environment of topo-tune's session"]


def test_nccl_conf_file_in_the_environment_is_a_conflict_and_its_lines_are_named(asked, root, monkeypatch):
    put(root, "/opt/nccl.conf", b"NCCL_SOCKET_NTHREADS=1\n")
    monkeypatch.setenv("NCCL_CONF_FILE", "/opt/nccl.conf")

    conflicts = asked("plan", settings=WANTED)["conflicts"]

    assert "`NCCL_SOCKET_NTHREADS` is set to `1` by /opt/nccl.conf:1" in conflicts
    assert any(conflict.startswith("`NCCL_CONF_FILE` is set to") for conflict in conflicts)


@pytest.mark.parametrize(
    "text",
    [
        "# topo-tune begin: x\nA=1\n",
        "A=1\n# topo-tune end\n",
        BLOCK + BLOCK,
        "# topo-tune end\n# topo-tune begin: x\n",
        "# topo-tune begin: x\n# topo-tune begin: x\n# topo-tune end\n",
    ],
    ids=["no end", "no begin", "twice", "wrong way round", "begun twice"],
)
def test_damaged_markers_are_refused(asked, root, text):
    put(root, "/etc/nccl.conf", text.encode())

    answer = asked("plan", settings=WANTED)

    assert answer["kind"] == "damaged-markers"
    assert "/etc/nccl.conf" in answer["error"]
    assert writer.UNCHANGED in answer["error"]


def test_a_value_that_cannot_be_a_line_is_refused(asked):
    assert asked("plan", settings={"NCCL_ALGO": "a\nNCCL_X=1"})["kind"] == "bad-request"


def test_no_settings_take_the_fragment_and_the_block_away(asked, root):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN\n")
    asked("write", **write_request(asked("plan", settings=WANTED)))

    asked("write", **write_request(asked("plan", settings={})))

    assert not (root / writer.FRAGMENT.lstrip("/")).exists()
    assert (root / "etc/nccl.conf").read_bytes() == b"NCCL_DEBUG=WARN\n"


# --- kinds of files ---


def make_directory(place: Path) -> None:
    place.mkdir()


def make_fifo(place: Path) -> None:
    os.mkfifo(place)


def make_dangling_link(place: Path) -> None:
    place.symlink_to("nowhere")


def make_link_loop(place: Path) -> None:
    place.symlink_to(place.name)


def make_link_to_a_directory(place: Path) -> None:
    place.symlink_to(".")


def make_hard_link(place: Path) -> None:
    place.write_bytes(b"A=1\n")
    os.link(place, place.with_name("other"))


@pytest.mark.parametrize(
    "make",
    [make_directory, make_fifo, make_dangling_link, make_link_loop, make_link_to_a_directory, make_hard_link],
)
def test_what_is_no_plain_file_is_an_error_that_names_it(asked, root, make):
    make(root / "etc/nccl.conf")

    answer = asked("plan", settings=WANTED)

    assert answer["kind"] == "not-a-regular-file"
    assert "/etc/nccl.conf is " in answer["error"]


def test_a_file_where_a_directory_must_be_is_an_error(asked, root):
    put(root, "/etc/nccl", b"")

    answer = asked("plan", settings=WANTED)

    assert answer["kind"] == "not-a-regular-file"
    assert "/etc/nccl is no directory" in answer["error"]


def test_a_link_that_leads_out_of_the_root_is_refused(asked, root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "nccl.conf"
    outside.write_bytes(b"A=1\n")
    (root / "etc/nccl.conf").symlink_to(outside)

    assert asked("plan", settings=WANTED)["kind"] == "outside"


def test_a_root_that_does_not_exist_is_an_error(capsys, root):
    assert ask(capsys, op="plan", root=str(root / "no"), settings=WANTED)["kind"] == "no-root"


# --- write and restore ---

OLD_FILES = {
    "absent": (None, 0),
    "empty": (b"", 0o644),
    "plain": (b"NCCL_DEBUG=WARN\n", 0o644),
    "no final newline": (b"NCCL_DEBUG=WARN", 0o640),
    "carriage returns": (b"# site\r\nNCCL_DEBUG=WARN\r\n", 0o644),
    "private": (b"NCCL_DEBUG=WARN\n", 0o600),
    "no UTF-8": (b"# caf\xe9\nNCCL_DEBUG=WARN\n", 0o644),
    "an older block": (b"# a\n" + BLOCK.replace("=4", "=2").encode() + b"# b\nNCCL_DEBUG=WARN", 0o644),
}


@pytest.fixture(params=OLD_FILES, ids=list(OLD_FILES))
def old_root(request, root):
    text, mode = OLD_FILES[request.param]
    if text is not None:
        put(root, "/etc/nccl.conf", text, mode)
    return root


def test_a_write_gives_exactly_the_planned_files(asked, old_root):
    plan = asked("plan", settings=WANTED)

    answer = asked("write", **write_request(plan))

    assert answer["files"] == plan["after"]
    assert [state["sha256"] for state in asked("inspect")["files"]] == [s["sha256"] for s in plan["after"]]


def test_after_a_write_nccl_would_read_the_wanted_values(asked, old_root):
    asked("write", **write_request(asked("plan", settings=WANTED)))

    effective = asked("inspect")["effective"]

    assert {name: effective[name][0] for name in WANTED} == WANTED


def test_a_write_after_a_write_changes_nothing(asked, old_root):
    asked("write", **write_request(asked("plan", settings=WANTED)))

    plan = asked("plan", settings=WANTED)

    assert plan["before"] == plan["after"]
    assert plan["made_directories"] == []


def test_a_restore_gives_back_the_exact_bytes_mode_owner_or_absence(asked, old_root):
    before = tree(old_root)
    plan = asked("plan", settings=WANTED)
    asked("write", **write_request(plan))

    answer = asked("restore", **restore_request(plan))

    assert answer["files"] == plan["before"]
    assert tree(old_root) == before


def test_a_restore_can_be_repeated_and_run_without_a_write(asked, old_root):
    before = tree(old_root)
    plan = asked("plan", settings=WANTED)

    asked("restore", **restore_request(plan))
    asked("write", **write_request(plan))
    asked("restore", **restore_request(plan))
    asked("restore", **restore_request(plan))

    assert tree(old_root) == before


def test_a_symbolic_link_stays_and_its_target_is_written_and_restored(asked, root):
    put(root, "/opt/site/nccl.conf", b"NCCL_DEBUG=WARN")
    (root / "etc/nccl.conf").symlink_to("../opt/site/nccl.conf")
    before = tree(root)
    plan = asked("plan", settings=WANTED)

    asked("write", **write_request(plan))
    written = (root / "opt/site/nccl.conf").read_bytes()
    is_link = (root / "etc/nccl.conf").is_symlink()
    asked("restore", **restore_request(plan))

    assert is_link
    assert written == b"NCCL_DEBUG=WARN\n" + BLOCK.encode()
    assert tree(root) == before


def test_only_directories_that_are_empty_again_are_removed(asked, root):
    plan = asked("plan", settings=WANTED)
    asked("write", **write_request(plan))
    put(root, "/etc/nccl/readme", b"mine")

    asked("restore", **restore_request(plan))

    assert [p for p in tree(root) if p.startswith("etc/nccl")] == ["etc/nccl", "etc/nccl/readme"]


@pytest.mark.parametrize("path", ["/etc/nccl.conf", writer.FRAGMENT])
def test_an_edit_between_plan_and_write_is_refused_with_both_hashes(asked, root, path):
    put(root, path, b"NCCL_DEBUG=WARN\n")
    plan = asked("plan", settings=WANTED)
    put(root, path, b"NCCL_DEBUG=INFO\n")
    before = tree(root)

    answer = asked("write", **write_request(plan))

    expected = next(s["sha256"] for s in plan["before"] if s["path"] == path)
    assert answer["kind"] == "changed"
    assert path in answer["error"]
    assert expected in answer["error"]
    assert writer.UNCHANGED in answer["error"]
    assert tree(root) == before


def test_a_file_that_came_to_be_after_the_plan_is_not_overwritten(asked, root):
    plan = asked("plan", settings=WANTED)
    put(root, "/etc/nccl.conf", b"A=1\n")

    answer = asked("write", **write_request(plan))

    assert answer["kind"] == "changed"
    assert "expected no file" in answer["error"]
    assert (root / "etc/nccl.conf").read_bytes() == b"A=1\n"


def test_a_changed_mode_counts_as_a_change(asked, root):
    file = put(root, "/etc/nccl.conf", b"A=1\n")
    plan = asked("plan", settings=WANTED)
    file.chmod(0o600)

    assert "found mode 0600" in asked("write", **write_request(plan))["error"]


def test_an_edit_after_the_write_is_not_undone_but_shown(asked, root):
    plan = asked("plan", settings=WANTED)
    asked("write", **write_request(plan))
    put(root, "/etc/nccl.conf", BLOCK.encode() + b"NCCL_DEBUG=INFO\x1b[2J\n")
    before = tree(root)

    answer = asked("restore", **restore_request(plan))

    assert answer["kind"] == "edited"
    assert "+NCCL_DEBUG=INFO\\x1b[2J" in answer["error"].splitlines()
    assert plan["after"][1]["sha256"] in answer["error"]
    assert tree(root) == before


def test_force_restores_over_an_edit(asked, root):
    before = tree(root)
    plan = asked("plan", settings=WANTED)
    asked("write", **write_request(plan))
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=INFO\n")

    asked("restore", force=True, **restore_request(plan))

    assert tree(root) == before


def test_a_restore_sweeps_up_what_a_killed_writer_left(asked, root):
    before = tree(root)
    plan = asked("plan", settings=WANTED)
    asked("write", **write_request(plan))
    put(root, "/etc/nccl/conf.d/.topo-tune-50-topo-tune.conf.abc", b"half")

    asked("restore", **restore_request(plan))

    assert tree(root) == before


def test_the_merge_is_written_after_its_fragment_and_taken_back_before_it(asked, root, monkeypatch):
    put(root, "/etc/nccl.conf", b"A=1\n")
    put(root, writer.FRAGMENT, b"NCCL_SOCKET_NTHREADS=2\n")
    plan = asked("plan", settings=WANTED)
    order = []
    real = os.rename
    monkeypatch.setattr(
        writer.os, "rename", lambda one, other: (order.append(os.path.basename(other)), real(one, other))
    )

    asked("write", **write_request(plan))
    asked("restore", **restore_request(plan))

    assert order == ["50-topo-tune.conf", "nccl.conf", "nccl.conf", "50-topo-tune.conf"]


# --- a node that cannot write ---


def failing(function, error: int, at_call: int):
    calls = iter(range(1, 1000))

    def call(*arguments, **keywords):
        if next(calls) == at_call:
            raise OSError(error, os.strerror(error))
        return function(*arguments, **keywords)

    return call


@pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.ENOSPC, "no-space"), (errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.EIO, "io")],
)
@pytest.mark.parametrize("function", ["fsync", "rename", "fchown", "mkdir"])
@pytest.mark.parametrize("at_call", [1, 2])
def test_a_write_that_fails_anywhere_leaves_everything_as_it_was(
    asked, root, monkeypatch, function, at_call, error, kind
):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN", 0o600)
    before = tree(root)
    plan = asked("plan", settings=WANTED)
    monkeypatch.setattr(writer.os, function, failing(getattr(os, function), error, at_call))

    answer = asked("write", **write_request(plan))

    assert answer["kind"] == kind
    assert os.strerror(error) in answer["error"]
    assert answer["error"].endswith(writer.UNCHANGED)
    assert tree(root) == before


@pytest.mark.parametrize("at_call", range(1, 7))
def test_a_write_that_cannot_sync_puts_back_what_it_renamed(asked, root, monkeypatch, at_call):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN", 0o600)
    before = tree(root)
    plan = asked("plan", settings=WANTED)
    monkeypatch.setattr(writer.os, "fsync", failing(os.fsync, errno.EIO, at_call))

    answer = asked("write", **write_request(plan))

    assert answer["kind"] == "io"
    assert tree(root) == before


def test_a_failure_that_cannot_be_undone_says_so(asked, root, monkeypatch):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN")
    put(root, writer.FRAGMENT, b"NCCL_CROSS_NIC=1\n")
    plan = asked("plan", settings=WANTED)
    real = os.rename
    done = []

    def rename(one, other):
        done.append(other)
        if len(done) > 1:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(one, other)

    monkeypatch.setattr(writer.os, "rename", rename)

    answer = asked("write", **write_request(plan))

    assert f"{writer.FRAGMENT} could not be put back either" in answer["error"]
    assert writer.UNCHANGED not in answer["error"]


def test_access_lists_and_labels_go_over_to_the_new_file(asked, root):
    file = put(root, "/etc/nccl.conf", b"A=1\n")
    try:
        os.setxattr(file, "user.label", b"site")
    except OSError:
        pytest.skip("this file system keeps no extended attributes")

    asked("write", **write_request(asked("plan", settings=WANTED)))

    assert os.getxattr(file, "user.label") == b"site"


# --- the program as it travels ---


def test_it_runs_as_a_program_on_a_bare_python(root):
    request = json.dumps({"op": "plan", "root": str(root), "settings": WANTED}).encode()
    command = program_command((sys.executable, "-I"), "writer", request, deadline_seconds=30)

    output = subprocess.run(command.argv, input=command.stdin, capture_output=True, check=False)

    answer = find_answer(output.stdout)
    assert answer is not None, output.stderr
    assert content(answer["after"], writer.SYSTEM_FILE) == BLOCK.encode()
    assert output.returncode == 0


DYING_WRITER = """
import os, sys
from topo_tune.on_node import writer
real, calls = os.rename, []
def rename(one, other):
    calls.append(one)
    if len(calls) == int(sys.argv[1]):
        os._exit(9)
    real(one, other)
os.rename = rename
writer.main(sys.stdin.buffer)
"""


@pytest.mark.parametrize("rename", [1, 2])
def test_a_writer_that_is_killed_between_its_files_leaves_what_a_restore_undoes(asked, root, rename):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN", 0o600)
    before = tree(root)
    plan = asked("plan", settings=WANTED)
    request = json.dumps({"op": "write", "root": str(root), **write_request(plan)}).encode()

    died = subprocess.run([sys.executable, "-c", DYING_WRITER, str(rename)], input=request, check=False)
    half = tree(root)
    asked("restore", **restore_request(plan))

    assert died.returncode == 9
    assert half != before
    assert tree(root) == before


@pytest.fixture
def somebody_at_work(root):
    """Another writer, which holds the lock."""
    descriptor = os.open(root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_a_write_and_a_restore_wait_for_another_writer_and_then_change_nothing(
    asked, root, monkeypatch, somebody_at_work
):
    monkeypatch.setattr(writer, "_LOCK_SECONDS", 0.1)
    plan = asked("plan", settings=WANTED)
    before = tree(root)

    answers = [asked("write", **write_request(plan)), asked("restore", **restore_request(plan))]

    assert [answer["kind"] for answer in answers] == ["busy", "busy"]
    assert all(answer["error"].endswith(writer.UNCHANGED) for answer in answers)
    assert tree(root) == before


def test_a_restore_goes_on_once_the_other_writer_has_ended(asked, root, somebody_at_work):
    plan = asked("plan", settings=WANTED)
    threading.Timer(0.2, fcntl.flock, (somebody_at_work, fcntl.LOCK_UN)).start()

    assert "error" not in asked("restore", **restore_request(plan))


def test_a_write_that_waited_longer_than_it_is_valid_changes_nothing(asked, root, somebody_at_work):
    plan = asked("plan", settings=WANTED)
    before = tree(root)
    threading.Timer(0.3, fcntl.flock, (somebody_at_work, fcntl.LOCK_UN)).start()

    answer = asked("write", **write_request(plan), valid_seconds=0.1)

    assert answer["kind"] == "expired"
    assert answer["error"].endswith(writer.UNCHANGED)
    assert tree(root) == before


def test_a_write_that_stalled_before_its_first_rename_changes_nothing(asked, root, monkeypatch):
    put(root, "/etc/nccl.conf", b"NCCL_DEBUG=WARN", 0o600)
    plan = asked("plan", settings=WANTED)
    before = tree(root)
    stage = writer._stage

    def slowly(real, new):
        time.sleep(0.2)
        return stage(real, new)

    monkeypatch.setattr(writer, "_stage", slowly)

    answer = asked("write", **write_request(plan), valid_seconds=0.1)

    assert (answer["kind"], tree(root)) == ("expired", before)


def test_a_write_in_time_is_carried_out(asked, root):
    plan = asked("plan", settings=WANTED)

    assert asked("write", **write_request(plan), valid_seconds=30)["files"] == plan["after"]


def test_an_unknown_operation_is_refused(asked):
    assert asked("wipe")["kind"] == "bad-request"


def test_marker_lines_set_no_variable_in_any_nccl_version():
    assert "=" not in writer.BEGIN_MARKER + writer.END_MARKER


# --- properties of the merge ---

NAMES = st.sampled_from(["NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_CTAS", "NCCL_CROSS_NIC"])
VALUES = st.text("abc019:,^=", min_size=1, max_size=8)
SETTINGS = st.dictionaries(NAMES, VALUES)
# Lines of anybody's making, but for topo-tune's own markers; surrogates stand for bytes that are no UTF-8.
LINES = st.text(
    st.one_of(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), st.just("\udce9")),
    max_size=20,
).filter(lambda line: "topo-tune" not in line)
OUTSIDE = st.lists(st.one_of(LINES, st.builds("{}={}".format, NAMES, VALUES), st.just("A=1\r"))).map(
    "\n".join
)


def lines_of(text: str) -> list[str]:
    return text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []


@given(OUTSIDE, SETTINGS)
def test_every_line_outside_the_block_is_kept(old, settings):
    before, _, after = writer.split(writer.merge(old, settings))

    assert lines_of(before) + lines_of(after) == lines_of(old)


@given(OUTSIDE, OUTSIDE, SETTINGS, SETTINGS)
def test_a_block_stays_where_it_is(head, tail, old_settings, settings):
    block = f"{writer.BEGIN_MARKER}\n{writer.fragment_text(old_settings)}{writer.END_MARKER}\n"
    head = head + "\n" if head else ""

    before, _, after = writer.split(writer.merge(head + block + tail, {**settings, "NCCL_DEBUG": "WARN"}))

    assert (before, after) == (head, tail)


@given(OUTSIDE, SETTINGS)
def test_merging_twice_is_merging_once(old, settings):
    once = writer.merge(old, settings)

    assert writer.merge(once, settings) == once


@given(OUTSIDE, SETTINGS, SETTINGS)
def test_the_last_merge_decides(old, first, second):
    second = {**second, "NCCL_DEBUG": "WARN"}

    assert writer.merge(writer.merge(old, {**first, "NCCL_DEBUG": "INFO"}), second) == writer.merge(
        old, second
    )


@given(OUTSIDE, SETTINGS)
def test_nccl_reads_the_wanted_values_wherever_nobody_else_sets_the_name(old, settings):
    others = {name for _, name, _ in nccl_conf.parse(old)}
    wanted = {name: value for name, value in settings.items() if name not in others}
    read = nccl_conf.parse(writer.merge(old, settings))

    assert {name: value for _, name, value in read if name in wanted} == wanted


@given(OUTSIDE, SETTINGS)
def test_each_name_set_outside_is_found_with_its_line(old, settings):
    merged = writer.merge(old, settings)
    lines = merged.split("\n")

    found = writer.set_outside(merged)

    assert [(name, value) for _, name, value in found] == [(n, v) for _, n, v in nccl_conf.parse(old)]
    assert all(lines[number - 1].startswith(name) for number, name, _ in found)


@given(OUTSIDE, SETTINGS.filter(bool))
def test_the_undo_is_exact(tmp_path_factory, old, settings):
    root = tmp_path_factory.mktemp("root")
    put(root, "/etc/nccl.conf", old.encode("utf-8", "surrogateescape"))
    before = tree(root)
    plan = writer.plan({"root": str(root), "settings": settings}, {})

    writer.write({"root": str(root), **write_request(plan)})
    writer.restore({"root": str(root), **restore_request(plan)})

    assert tree(root) == before


def test_a_new_file_is_readable_by_every_job_whatever_the_umask(asked, root):
    old = os.umask(0o077)
    try:
        asked("write", **write_request(asked("plan", settings=WANTED)))
    finally:
        os.umask(old)

    assert stat.S_IMODE((root / "etc/nccl.conf").stat().st_mode) == 0o644
    assert stat.S_IMODE((root / "etc/nccl").stat().st_mode) == 0o755
