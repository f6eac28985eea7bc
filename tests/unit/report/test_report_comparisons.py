"""Settings against the default, as `bench` tells it."""

from __future__ import annotations

import msgspec

from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.report.comparisons import comparisons_report

TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": "2"})


def launch(index: int, env: NcclEnv, times: dict[int, float], **changes: object) -> Launch:
    made = Launch(
        index=index,
        purpose="bench",
        nodes=("n1", "n2"),
        env=env,
        backend=BackendName.NCCL,
        ranks=2,
        started_at=f"2026-11-29T20:{index:02d}:00+00:00",
        wall_seconds=2.0,
        results=tuple(
            SizeResult(size, (seconds,), 20, TimingMode.GRAPH, True) for size, seconds in times.items()
        ),
    )
    return msgspec.structs.replace(made, **changes)


def blocks(count: int, gain: float, noise: tuple[float, ...] = (1.0, 1.01, 0.99, 1.02)) -> list[Launch]:
    """ABBA blocks in which the setting is `gain` times as fast at 2 MiB and alike at 8 KiB."""
    made: list[Launch] = []
    for block in range(count):
        pair = [(DEFAULTS, 1.0), (TUNED, gain)]
        for env, factor in pair if block % 2 == 0 else reversed(pair):
            wobble = noise[(len(made) * 7) % len(noise)]
            made.append(launch(len(made), env, {8192: 50e-6 * wobble, 2 << 20: 800e-6 * wobble / factor}))
    return made


def test_each_size_and_their_mean_have_a_speed_up_with_its_interval() -> None:
    lines = comparisons_report(blocks(6, 2.5))

    assert lines[0] == "# NCCL_SOCKET_NTHREADS=2 against NCCL's defaults, all_reduce; 99 % intervals"
    rows = {line.split()[0]: line for line in lines if not line.startswith("#")}
    assert rows["8K"].endswith("6+6  not told apart")
    assert rows["2M"].split()[1].startswith("2.5")
    assert rows["2M"].endswith("faster")
    assert rows["mean"].endswith("faster")


def test_what_is_slower_is_said() -> None:
    assert any(line.endswith("slower") for line in comparisons_report(blocks(6, 0.5)))


def test_drift_of_the_default_is_told_below() -> None:
    drifting = [launch(i, DEFAULTS if i % 2 == 0 else TUNED, {8192: 50e-6 * 1.05**i}) for i in range(24)]

    assert "% per 10 minutes" in comparisons_report(drifting)[-1]


def test_one_launch_of_a_side_is_too_few() -> None:
    assert "too few to compare" in comparisons_report(blocks(1, 2.0))[1]


def test_failed_launches_are_left_out_and_the_others_keep_their_blocks() -> None:
    made = blocks(6, 2.5)
    made[3] = msgspec.structs.replace(made[3], error="hung")

    rows = [line for line in comparisons_report(made) if line.strip().startswith("2M")]

    assert "5+5" in rows[0] or "6+5" in rows[0]


def test_without_another_setting_nothing_is_compared() -> None:
    assert comparisons_report([launch(0, DEFAULTS, {8192: 1e-5})]) == []


def test_an_interval_that_says_nothing_is_not_told_to_the_digit() -> None:
    lines = comparisons_report(blocks(2, 2.5, noise=(1.0, 3.0, 0.4, 1.7, 0.8)))

    rows = {line.split()[0]: line for line in lines if not line.startswith("#")}
    assert "0.00 to over 100" in rows["8K"]
    assert {line.index("2+2") for line in rows.values()} == {45}
