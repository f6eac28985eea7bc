"""The bench agent's parts that need neither torch nor a process of their own."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
from pathlib import Path

import pytest

from topo_tune.connect.program import bundle
from topo_tune.on_node import bench_agent, bench_rank, meeting, trial
from topo_tune.on_node.bench_rank import NcclLog
from topo_tune.on_node.marks import AT
from topo_tune.on_node.trial import Rank, RankLog, Trial


def log_of(*pieces: bytes) -> RankLog:
    """A log of which these pieces were read, one after the other."""
    read_end, write_end = os.pipe()
    log = RankLog(read_end)
    for piece in pieces:
        os.write(write_end, piece)
        log.drain()
    os.close(write_end)
    log.close()
    return log


# -- a rank's log


def test_a_log_keeps_its_last_lines_and_its_last_mark() -> None:
    log = log_of(b"one\ntwo\n", f"{AT}timing 8 bytes\n".encode(), b"three\nfour")

    assert (log.tail(), log.mark) == ("two | three | four", "timing 8 bytes")


def test_a_log_whose_rank_never_said_anything_is_starting() -> None:
    log = log_of()

    assert (log.tail(), log.mark) == ("", "starting")


def test_a_line_in_two_pieces_is_one_line() -> None:
    log = log_of(b"hal", b"ves\n" + AT[:7].encode(), AT[7:].encode() + b"leaving\n")

    assert (log.tail(), log.mark) == ("halves", "leaving")


def test_a_line_without_end_is_cut() -> None:
    log = log_of(*[b"x" * 60_000] * 10, b" the end")

    assert len(log.tail()) <= trial.LOG_TAIL_BYTES
    assert log.tail().endswith(" the end")


def test_a_flood_leaves_the_mark_that_came_before_it() -> None:
    log = log_of(f"{AT}first call\n".encode(), *[b"y" * 999 + b"\n"] * 200)

    assert log.mark == "first call"


# -- NCCL's log


def log_at(path: Path) -> NcclLog:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {})
        return NcclLog(str(path))


def test_of_nccls_log_what_tells_settings_and_choices_is_kept_without_its_prefix(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(
        "gpu-node-06:334783:334783 [0] NCCL INFO NCCL_MIN_CTAS set by environment to 32.\n"
        "gpu-node-06:334783:334783 [0] NCCL INFO Bootstrap: Using eno1:192.0.2.6<0>\n"
        "gpu-node-06:334783:335233 [0] NCCL INFO Channel 00/32 : 0 1\n"
        "gpu-node-06:334783:335233 [0] NCCL INFO Using network IBext_v10\n"
    )

    assert log_at(log).news() == [
        "NCCL_MIN_CTAS set by environment to 32.",
        "Using network IBext_v10",
    ]


def test_a_long_log_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("NCCL WARN again\n" * 10_000)

    assert len(log_at(log).news()) == bench_rank.PROBE_LOG_LINES


def test_a_log_that_grows_is_told_piece_by_piece(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    told = log_at(log)

    before = told.news()
    log.write_text("NCCL WARN one\n")
    first = told.news()
    with log.open("a") as file:
        file.write("NCCL WARN two\n")

    assert (before, first, told.news()) == ([], ["NCCL WARN one"], ["NCCL WARN two"])


def test_a_line_that_is_still_being_written_is_read_whole_the_next_time(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    told = log_at(log)

    log.write_text("NCCL WARN one\nNCCL WA")
    first = told.news()
    with log.open("a") as file:
        file.write("RN two\n")

    assert (first, told.news(), told.news()) == (["NCCL WARN one"], ["NCCL WARN two"], [])


# -- the rest


def test_a_long_message_is_told_in_its_first_lines() -> None:
    assert bench_rank.first_line("\none\n  two \n\nthree\nfour\n") == "one | two | three"
    assert len(bench_rank.first_line("x" * 5000)) == 600


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("", bench_agent.free_port()))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.12", "localhost"])
def test_this_machine_is_reached_over_loopback(host: str) -> None:
    assert meeting.interface_towards(host, 1) == "lo"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_ipv6_address_has_an_interface_too() -> None:
    assert meeting.interface_towards("::1", 1) == "lo"


def test_a_name_that_nobody_knows_has_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    assert meeting.interface_towards("no-such-host.invalid", 1) is None


def test_an_address_of_nobody_has_no_interface() -> None:
    assert meeting.interface_of("192.0.2.1") is None


def test_it_and_all_it_brings_along_is_written_in_the_python_that_old_nodes_have() -> None:
    sources = json.loads(bundle("bench_agent"))

    assert {"bench_agent", "bench_rank", "nccl_api"} <= {name for name, _ in sources}
    for _, source in sources:
        ast.parse(source, feature_version=(3, 8))


def test_all_that_it_imports_of_its_siblings_is_brought_along_before_it() -> None:
    known: set[str] = set()
    for name, source in json.loads(bundle("bench_agent")):
        wanted = set(re.findall(r"from topo_tune\.on_node\.(\w+) import", source))
        wanted |= set(re.findall(r"from topo_tune\.on_node import ([\w, ]+)", source))
        assert {part.strip() for names in wanted for part in names.split(",")} <= known, name
        known.add(name)


# -- what goes wrong around a trial

REQUEST = {"id": 7, "first_rank": 2, "local_ranks": 2, "plan": {"deadline_seconds": 60}}


class Stuck(Rank):
    """A rank that the kernel does not let go, whatever it is sent."""

    def __init__(self, number: int) -> None:
        read_end, write_end = os.pipe()
        os.close(write_end)
        super().__init__(number, 99, os.dup(read_end), RankLog(read_end))

    def is_reaped(self) -> bool:
        return False


def test_a_rank_that_cannot_be_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "KILL_SECONDS", 0.01)
    stuck = Trial(REQUEST, "nccl")
    stuck.ranks = [Stuck(3)]
    stuck.fail("aborted")

    (answer,) = stuck.events()

    assert answer["error"] == "aborted; rank 3 (process 99) cannot be killed, stuck in the kernel"


def test_a_node_that_takes_no_more_processes_fails_the_trial_and_keeps_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    refused = Trial(REQUEST, "gloo")

    refused.start()
    (answer,) = refused.events()

    assert answer["error"] == "cannot start rank 2: [Errno 11] Resource temporarily unavailable"
    assert (refused.seconds_left(), len(os.listdir("/proc/self/fd"))) == (0.0, before)


# -- variants, as the agent sees them


class Told(Rank):
    """A rank without a process: what it says is put into its pipe."""

    def __init__(self, number: int) -> None:
        read_end, self.write_end = os.pipe()
        log_end, other_end = os.pipe()
        os.close(other_end)
        super().__init__(number, 99, read_end, RankLog(log_end))

    def say(self, variant: int, error: str | None = None) -> None:
        line = {"variant": variant, "rank": self.number, "error": error}
        os.write(self.write_end, json.dumps(line).encode() + b"\n")

    def end(self) -> None:
        os.write(self.write_end, b'{"end": true}\n')
        os.close(self.write_end)

    def is_reaped(self) -> bool:
        return True


def trial_of_three_variants() -> tuple[Trial, Told, Told]:
    request = {"id": 1, "first_rank": 0, "local_ranks": 2, "plan": {"deadline_seconds": 60}}
    made = Trial({**request, "variants": [{}, {}, {}]}, "nccl")
    ranks = Told(0), Told(1)
    made.ranks = list(ranks)
    return made, *ranks


def told(events: list[dict[str, object]]) -> list[object]:
    return [event.get("index", "result") for event in events]


def test_a_variant_is_told_when_all_ranks_have_answered_it() -> None:
    made, first, second = trial_of_three_variants()

    first.say(0)
    made.read([first.pipe])
    before = made.events()
    second.say(0)
    made.read([second.pipe])

    assert (told(before), told(made.events())) == ([], [0])


def test_each_variant_has_the_deadline_anew() -> None:
    made, first, second = trial_of_three_variants()
    made.deadline -= 50
    first.say(0)
    second.say(0)
    made.read([first.pipe, second.pipe])

    made.events()

    assert made.seconds_left() > 50


def test_what_ranks_had_said_when_one_of_them_failed_is_kept() -> None:
    made, first, second = trial_of_three_variants()
    first.say(0)
    second.say(0)
    first.say(1, "rank 0: no luck")

    # the agent has not come to the second rank's words yet
    made.read([first.pipe])
    variant, result = made.events()

    assert variant["index"] == 0
    assert (result["ok"], result["error"], result["variants_done"]) == (False, "rank 0: no luck", 1)
    assert [rank["error"] for rank in result["ranks"]] == ["rank 0: no luck"]


def test_ranks_that_end_early_and_well_have_done_what_they_told() -> None:
    made, first, second = trial_of_three_variants()
    for rank in (first, second):
        rank.say(0)
        rank.end()

    for _ in range(2):
        made.read([rank.pipe for rank in (first, second) if rank.is_open])
    events = made.events()

    assert (told(events), made.is_over) == ([0, "result"], True)
    assert (events[-1]["ok"], events[-1]["variants_done"]) == (True, 1)
