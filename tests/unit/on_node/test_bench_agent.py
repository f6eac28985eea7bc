"""The bench agent's parts that need neither torch nor a process of their own."""

from __future__ import annotations

import ast
import os
import socket
from importlib import resources
from pathlib import Path

import pytest

from topo_tune.on_node import bench_agent
from topo_tune.on_node.bench_agent import AT, Rank, RankLog, Trial, graph_pattern_of, pattern_of

BFLOAT16_BITS = 8
WORLDS = (2, 3, 8, 16, 24, 64, 65, 96, 128, 200, 512, 1000)


def significant_bits(value: int) -> int:
    """How many binary digits a number needs, without the zeros at its end."""
    return len(bin(value)[2:].rstrip("0"))


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


# -- sums that are exact


@pytest.mark.parametrize("world", WORLDS)
def test_no_part_of_a_sum_is_too_large_for_bfloat16(world: int) -> None:
    # all values are positive, so whatever order they are added in, no part is larger than the whole
    assert max(bench_agent.sum_of_patterns(world)) <= 1 << BFLOAT16_BITS


@pytest.mark.parametrize("world", WORLDS)
def test_a_sum_without_any_one_rank_is_seen(world: int) -> None:
    assert all(any(pattern_of(rank, world)) for rank in range(world))


def test_a_sum_that_counts_a_neighbour_twice_is_seen() -> None:
    assert all(pattern_of(rank, 24) != pattern_of(rank + 1, 24) for rank in range(23))


def test_the_sum_is_that_of_all_ranks() -> None:
    assert [pattern_of(rank, 2) for rank in range(2)] == [[0, 1, 2], [1, 2, 0]]
    assert bench_agent.sum_of_patterns(2) == [1, 3, 2]


@pytest.mark.parametrize("world", [2, 4, 8, 16, 32, 64])
def test_every_part_of_a_captured_sum_is_exact_in_bfloat16(world: int) -> None:
    first = [sum(column) for column in zip(*(graph_pattern_of(r, world) for r in range(world)), strict=True)]

    # later calls add `world` equal powers of two: their parts are 1, 2, ... world times it
    assert {significant_bits(value) for value in first} == {1}
    assert max(significant_bits(count) for count in range(1, world + 1)) <= BFLOAT16_BITS


@pytest.mark.parametrize("world", [2, 8, 64])
def test_what_a_graph_leaves_is_the_sum_times_the_ranks_for_each_further_call(world: int) -> None:
    expected = bench_agent.sum_of_graph_patterns(world)

    assert expected is not None
    assert expected[:3] == [4.0**0 * world**19, 2.0 * world**19, 4.0 * world**19]
    assert max(expected) < 3.3e38  # bfloat16's largest


@pytest.mark.parametrize("world", [3, 24, 128])
def test_where_a_captured_sum_cannot_be_exact_there_is_none_to_check(world: int) -> None:
    assert bench_agent.sum_of_graph_patterns(world) is None


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

    assert len(log.tail()) <= bench_agent.LOG_TAIL_BYTES
    assert log.tail().endswith(" the end")


def test_a_flood_leaves_the_mark_that_came_before_it() -> None:
    log = log_of(f"{AT}first call\n".encode(), *[b"y" * 999 + b"\n"] * 200)

    assert log.mark == "first call"


# -- NCCL's log


def test_of_nccls_log_what_tells_settings_and_choices_is_kept_without_its_prefix(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(
        "gpu-node-06:334783:334783 [0] NCCL INFO NCCL_MIN_CTAS set by environment to 32.\n"
        "gpu-node-06:334783:334783 [0] NCCL INFO Bootstrap: Using eno1:192.0.2.6<0>\n"
        "gpu-node-06:334783:335233 [0] NCCL INFO Channel 00/32 : 0 1\n"
        "gpu-node-06:334783:335233 [0] NCCL INFO Using network IBext_v10\n"
    )

    assert bench_agent.read_log(str(log)) == [
        "NCCL_MIN_CTAS set by environment to 32.",
        "Using network IBext_v10",
    ]


def test_a_long_log_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("NCCL WARN again\n" * 10_000)

    assert len(bench_agent.read_log(str(log))) == bench_agent.PROBE_LOG_LINES


# -- the rest


def test_a_long_message_is_told_in_its_first_lines() -> None:
    assert bench_agent.first_line("\none\n  two \n\nthree\nfour\n") == "one | two | three"
    assert len(bench_agent.first_line("x" * 5000)) == 600


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("", bench_agent.free_port()))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.12", "localhost"])
def test_this_machine_is_reached_over_loopback(host: str) -> None:
    assert bench_agent.interface_towards(host, 1) == "lo"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_ipv6_address_has_an_interface_too() -> None:
    assert bench_agent.interface_towards("::1", 1) == "lo"


def test_a_name_that_nobody_knows_has_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    assert bench_agent.interface_towards("no-such-host.invalid", 1) is None


def test_an_address_of_nobody_has_no_interface() -> None:
    assert bench_agent.interface_of("192.0.2.1") is None


@pytest.mark.parametrize("name", ["bench_agent", "nccl_conf"])
def test_it_is_written_in_the_python_that_old_nodes_have(name: str) -> None:
    source = (resources.files("topo_tune.on_node") / f"{name}.py").read_text("utf-8")

    ast.parse(source, feature_version=(3, 8))


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
    monkeypatch.setattr(bench_agent, "KILL_SECONDS", 0.01)
    trial = Trial(REQUEST, "nccl")
    trial.ranks = [Stuck(3)]
    trial.fail("aborted")

    answer = trial.answer_if_over()

    assert answer is not None
    assert answer["error"] == "aborted; rank 3 (process 99) cannot be killed, stuck in the kernel"


def test_a_node_that_takes_no_more_processes_fails_the_trial_and_keeps_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    trial = Trial(REQUEST, "gloo")

    trial.start()
    answer = trial.answer_if_over()

    assert answer is not None
    assert answer["error"] == "cannot start rank 2: [Errno 11] Resource temporarily unavailable"
    assert (trial.seconds_left(), len(os.listdir("/proc/self/fd"))) == (0.0, before)
