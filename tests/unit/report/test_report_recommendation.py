"""What a recommendation looks like to people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from report_text import text_of

from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.recommendation import Advice, Finalist, Recommendation
from topo_tune.records.search import Comparison
from topo_tune.report.recommendation import recommendation_report

THREADS = nccl_env({"NCCL_SOCKET_NTHREADS": 2})
RING = nccl_env(
    {
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_BUFFSIZE": 8388608,
        "NCCL_NSOCKS_PERTHREAD": 8,
        "NCCL_PROTO": "allreduce:simple",
        "NCCL_SOCKET_NTHREADS": 2,
    }
)


def finalist(env: NcclEnv, *, is_accepted: bool, reason: str) -> Finalist:
    comparisons = (
        Comparison(8192, 0.0, 54.0e-6, 67.3e-6, 0.80, 0.68, 0.95, 6),
        Comparison(131072, 1.0, 163e-6, 138e-6, 1.18, 0.89, 1.56, 6),
        Comparison(33554432, 1.0, 11.6e-3, 3.09e-3, 3.74, 2.86, 4.89, 6),
    )
    return Finalist(env, 2.10, 1.80, 2.45, comparisons, is_accepted, reason)


def recommendation(**changes: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "cluster": "lab",
        "advice": Advice.CHANGE,
        "reason": "2.10x the default's speed (1.80x to 2.45x); no weighted size is seen to be slower",
        "env": THREADS,
        "backend": BackendName.NCCL,
        "ranks": 16,
        "collective": "all_reduce",
        "dtype": "bfloat16",
        "confidence": 0.99666,
        "finalists": (
            finalist(THREADS, is_accepted=True, reason="2.10x the default's speed (1.80x to 2.45x)"),
            finalist(RING, is_accepted=False, reason="slower at 128K: 0.61x"),
        ),
        "launches_total": 149,
        "tolerance": 0.03,
        "fingerprint": (("driver", "580.159"), ("gpu", "NVIDIA H200"), ("nccl", "2.28.9"), ("nodes", "2")),
        "notes": ("8K has weight zero, so it did not decide: it runs at 0.80x",),
    }
    return Recommendation(**(fields | changes))


def nothing(**changes: Any) -> Recommendation:
    closest = finalist(THREADS, is_accepted=False, reason="the gain is not proved")
    return recommendation(
        advice=Advice.CHANGE_NOTHING,
        env=DEFAULTS,
        finalists=(closest,),
        reason=f"no setting passed; the closest was `{THREADS}`: the gain is not proved",
        **changes,
    )


def test_a_change(golden: Callable[[str, str], None]) -> None:
    golden("reports/recommendation-change-80.txt", text_of(recommendation_report(recommendation())))


def test_a_change_from_a_replay(golden: Callable[[str, str], None]) -> None:
    text = text_of(recommendation_report(recommendation(backend=BackendName.REPLAY)), width=120)

    golden("reports/recommendation-replay-120.txt", text)


def test_change_nothing(golden: Callable[[str, str], None]) -> None:
    golden("reports/recommendation-nothing-80.txt", text_of(recommendation_report(nothing())))


def test_change_nothing_when_nothing_was_left_to_compare(golden: Callable[[str, str], None]) -> None:
    empty = recommendation(
        advice=Advice.CHANGE_NOTHING,
        env=DEFAULTS,
        finalists=(),
        fingerprint=(),
        notes=(),
        reason="there was no setting to try",
    )

    golden("reports/recommendation-nothing-tried-80.txt", text_of(recommendation_report(empty)))


def test_every_gain_has_its_interval_and_its_launches() -> None:
    text = text_of(recommendation_report(recommendation()))

    assert "128K       1   163 us   138 us     1.18x      0.89 to 1.56       6+6" in text
    assert "99.67 % interval" in text
    assert "One all_reduce of bfloat16 on 16 ranks, back end nccl" in text


def test_a_replay_says_so_in_the_first_line() -> None:
    change = text_of(recommendation_report(recommendation(backend=BackendName.REPLAY)))
    no_change = text_of(recommendation_report(nothing(backend=BackendName.REPLAY)))

    assert change.splitlines()[0] == "Recommended for lab (replay: recorded times)"
    assert no_change.splitlines()[0] == "Change nothing on lab (replay: recorded times)"


def test_names_and_notes_are_never_markup() -> None:
    hostile = recommendation(
        cluster="[red]lab[/red]", notes=("[/] as it is",), fingerprint=(("gpu", "[bold]H200"),)
    )

    text = text_of(recommendation_report(hostile), width=200)

    assert "[red]lab[/red]" in text
    assert "[/] as it is" in text
    assert "[bold]H200" in text
