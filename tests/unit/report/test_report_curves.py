"""Pictures of launches: what they show, in a terminal of 80 columns and as one page that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from topo_tune.records.bench import Launch, Layout, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.report.braille import Canvas
from topo_tune.report.curves import busbw_plot
from topo_tune.report.curves_html import busbw_page
from topo_tune.report.pictures import apart, percent, pictures_of, position, ticks

TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4, "NCCL_NSOCKS_PERTHREAD": 1})
RING = nccl_env({"NCCL_ALGO": "Ring"})
SIZES = (8 << 10, 128 << 10, 2 << 20, 32 << 20)

# Microseconds per size, one row a launch: as on two nodes over TCP, with a setting that wins large and loses small.
DEFAULT_TIMES = ((57.3, 158.8, 767.4, 10247), (57.7, 167.0, 750.7, 10407), (50.8, 144.1, 768.6, 10684))
TUNED_TIMES = ((67.0, 350.1, 510.2, 2010), (68.1, 362.5, 505.3, 2095), (62.0, 339.0, 514.9, 2051))


def launch(index: int, times_us: tuple[float, ...], env: NcclEnv = DEFAULTS, **changes: Any) -> Launch:
    results = tuple(
        SizeResult(size, (us * 1e-6,), 20, TimingMode.GRAPH, True)
        for size, us in zip(SIZES, times_us, strict=False)
    )
    fields: dict[str, Any] = {
        "purpose": "bench",
        "nodes": ("n1", "n2"),
        "backend": BackendName.NCCL,
        "ranks": 2,
        "started_at": "2026-01-02T03:04:05+00:00",
        "wall_seconds": 1.5,
        "dtype": "bfloat16",
    }
    return Launch(index=index, env=env, results=results, **(fields | changes))


def interleaved() -> list[Launch]:
    rows = [
        (times, env)
        for pair in zip(DEFAULT_TIMES, TUNED_TIMES, strict=True)
        for times, env in zip(pair, (DEFAULTS, TUNED), strict=True)
    ]
    return [launch(index, times, env) for index, (times, env) in enumerate(rows)]


# --- what is shown ---


def test_a_point_is_the_geometric_mean_over_launches_with_its_interval() -> None:
    (picture,) = pictures_of([launch(0, (50.0,)), launch(1, (200.0,))], "all_reduce", "bfloat16")

    (point,) = picture.curves[0].points
    # 8192 bytes in 100 us on two ranks: 81.92 MB/s, times 2 (2 - 1) / 2.
    assert point.busbw.center == pytest.approx(0.08192)
    # Student's t for one degree of freedom at 95 % is 12.706; the standard error is half the logs' difference.
    assert math.log(point.busbw.high / point.busbw.center) == pytest.approx(
        12.706 * math.log(4) / 2, rel=1e-4
    )
    assert (point.launches, point.gain) == (2, None)


def test_a_single_launch_has_a_point_and_no_bar() -> None:
    (picture,) = pictures_of([launch(0, (50.0,)), launch(1, (25.0,), RING)], "all_reduce", "bfloat16")

    point = picture.curves[1].points[0]
    assert point.busbw.low == point.busbw.center == point.busbw.high
    assert point.gain is not None
    assert (point.gain.low, point.gain.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_gain_is_above_one_where_a_setting_is_faster() -> None:
    (picture,) = pictures_of(interleaved(), "all_reduce", "bfloat16")

    gains = [point.gain for point in picture.curves[1].points]
    assert [gain is not None and gain.center > 1 for gain in gains] == [False, False, True, True]
    assert gains[3] is not None
    assert gains[3].low < 10446 / 2052 < gains[3].high


def test_settings_that_shared_processes_are_one_launch() -> None:
    launches = [launch(index, (50.0 + index,), processes=index // 2) for index in range(4)]

    (picture,) = pictures_of(launches, "all_reduce", "bfloat16")

    assert picture.curves[0].points[0].launches == 2


def test_the_default_comes_first_wherever_it_was_measured() -> None:
    (picture,) = pictures_of(
        [launch(0, (50.0,), RING), launch(1, (60.0,)), launch(2, (55.0,), TUNED)], "all_reduce", "bfloat16"
    )

    assert [curve.name for curve in picture.curves] == ["NCCL's defaults", str(RING), str(TUNED)]


def test_collectives_layouts_and_places_are_pictures_of_their_own() -> None:
    launches = [
        launch(0, (50.0,)),
        launch(1, (50.0,), collective="all_gather"),
        launch(2, (50.0,), in_place=False),
        launch(3, (50.0,), layout=Layout.WITHIN_NODE, communicator_ranks=1),
    ]

    titles = [picture.title for picture in pictures_of(launches, "all_reduce", "bfloat16")]

    assert titles == [
        "all_reduce, bfloat16, 2 ranks, in place, back end nccl",
        "all_gather, bfloat16, 2 ranks, in place, back end nccl",
        "all_reduce, bfloat16, 2 ranks, out of place, back end nccl",
        "all_reduce, bfloat16, 2 ranks, layout node, in place, back end nccl",
    ]


def test_failed_launches_and_sizes_that_were_cut_off_are_left_out() -> None:
    cut = SizeResult(32 << 20, (), 0, TimingMode.EAGER, None, slower_than_seconds=0.1)
    half = launch(1, (40.0,), RING)
    launches = [
        launch(0, (50.0, 60.0)),
        Launch(**{f: getattr(half, f) for f in half.__struct_fields__} | {"results": (*half.results, cut)}),
        launch(2, (1.0,), TUNED, error="it hung"),
    ]

    (picture,) = pictures_of(launches, "all_reduce", "bfloat16")

    assert [[point.size_bytes for point in curve.points] for curve in picture.curves] == [
        [8 << 10, 128 << 10],
        [8 << 10],
    ]


def test_what_was_replayed_is_called_so() -> None:
    (picture,) = pictures_of([launch(0, (50.0,), backend=BackendName.REPLAY)], "all_reduce", "bfloat16")

    assert picture.title.endswith("back end replay (recorded times)")


# --- scales ---


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0.08, 480.0, [0.1, 1.0, 10.0, 100.0]),
        (0.9, 40.0, [1.0, 3.0, 10.0, 30.0]),
        (9.0, 21.0, [10.0, 15.0, 20.0]),
        (0.96, 1.13, [0.96, 0.98, 1.0]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(found)


@pytest.mark.parametrize("value", [1e-9, 0.37, 1.0, 4e11])
def test_an_axis_of_a_single_value_has_room_on_both_sides(value: float) -> None:
    low, high = apart(value, value)

    assert low < value < high
    assert position(value, low, high) == pytest.approx(0.5)
    assert ticks(low, high)


def test_percentages_have_no_negative_zero() -> None:
    assert [percent(ratio) for ratio in (1.0312, 0.9996, 0.5)] == ["+3.1 %", "+0.0 %", "-50.0 %"]


# --- the terminal ---


def test_a_baseline_and_a_candidate_in_80_columns(golden: Callable[[str, str], None]) -> None:
    lines = busbw_plot(interleaved(), "all_reduce", "bfloat16")

    assert max(map(len, lines)) <= 80
    golden("reports/curves-80.txt", "\n".join(lines) + "\n")


def test_every_setting_has_a_mark_of_its_own() -> None:
    launches = [
        launch(index, (10.0 * (index + 1), 10.0 * (index + 1)), NcclEnv((("NCCL_MAX_CTAS", str(index)),)))
        for index in range(11)
    ]

    lines = busbw_plot(launches, "all_reduce", "bfloat16")

    legend = [line for line in lines if "NCCL_MAX_CTAS" in line]
    assert [line[:4] for line in legend] == [f"  {mark} " for mark in "ox+*#%&=$"]
    assert "  2 more settings in the table only" in lines


def test_marks_that_meet_are_told() -> None:
    lines = busbw_plot([launch(0, (50.0,)), launch(1, (50.0,), RING)], "all_reduce", "bfloat16")

    assert "  @ several at one place" in lines
    assert any("@" in line.partition("│")[2] for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 132])
def test_other_widths_hold(width: int) -> None:
    lines = busbw_plot(interleaved(), "all_reduce", "bfloat16", width=width)

    assert [line for line in lines if len(line) > max(width, 70)] == []


def test_nothing_measured_is_nothing_drawn() -> None:
    assert busbw_plot([launch(0, (), error="it hung")], "all_reduce", "bfloat16") == []


def test_dots_stand_where_braille_has_them() -> None:
    canvas = Canvas(2, 1)

    canvas.line([(0, 0), (0, 3)], every=1)
    canvas.line([(3, 3), (3, 3)], every=1)
    canvas.line([(9, 9), (-4, 1)], every=100)

    assert canvas.rows() == ["⡇⠈"]


def test_a_dotted_line_leaves_dots_out() -> None:
    solid, dotted = Canvas(4, 1), Canvas(4, 1)

    solid.line([(0, 0), (7, 0)], every=1)
    dotted.line([(0, 0), (7, 0)], every=2)

    assert (solid.rows(), dotted.rows()) == (["⣀⣀⣀⣀"], ["⡀⡀⡀⡀"])


# --- the page ---


class Page(HTMLParser):
    """Tags, attributes and texts of a page; fails on a tag that is closed by another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def test_a_page_is_well_formed_and_has_both_drawings_and_the_numbers() -> None:
    page = Page(busbw_page(interleaved(), "all_reduce", "bfloat16", notes=["a note"]))

    assert page.open == []
    drawings = [attributes for tag, attributes in page.tags if tag == "svg" and "role" in attributes]
    assert len(drawings) == 2
    assert len([tag for tag, _ in page.tags if tag == "tr"]) == 1 + 2 * len(SIZES)
    assert "a note" in page.of("li")


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text = busbw_page(interleaved(), "all_reduce", "bfloat16")
    page = Page(text)

    assert not {"script", "link", "img", "iframe", "object", "use", "a"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "xlink:href", "onclick"} & {name for _, found in page.tags for name in found}
    assert "url(" not in text
    assert "@import" not in text
    assert "http://" not in text.replace("http-equiv", "")
    assert "https://" not in text


def test_every_drawing_has_a_text_that_says_the_same() -> None:
    page = Page(busbw_page(interleaved(), "all_reduce", "bfloat16"))

    labels = [str(found["aria-labelledby"]).split() for tag, found in page.tags if found.get("role") == "img"]
    named = {str(found["id"]) for tag, found in page.tags if "id" in found}
    assert [len(label) for label in labels] == [2, 2]
    assert {name for label in labels for name in label} == named
    busbw, gains = page.of("desc")
    assert busbw.startswith("NCCL's defaults: 8K 0.148, 128K 0.838, ")
    assert gains.startswith("NCCL_NSOCKS_PERTHREAD=1 NCCL_SOCKET_NTHREADS=4: 8K -16.0 %, ")


def test_a_page_has_colours_for_light_and_dark() -> None:
    text = busbw_page(interleaved(), "all_reduce", "bfloat16")

    light, _, dark = text.partition("@media (prefers-color-scheme: dark)")
    assert "--ground: #ffffff" in light
    assert "--ground: #16181c" in dark


def test_names_are_shown_and_never_obeyed() -> None:
    odd = NcclEnv((("NCCL_GRAPH_FILE", "<script>alert('&')</script>\x1b[31m"),))

    text = busbw_page([launch(0, (50.0,)), launch(1, (40.0,), odd)], "all_reduce", "bfloat16", title="<b>&")

    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.of("title")[0] == "<b>&"
    assert "\x1b" not in text


def test_many_settings_differ_by_colour_or_shape() -> None:
    launches = [
        launch(index, (10.0 + index,), NcclEnv((("NCCL_MAX_CTAS", str(index)),))) for index in range(24)
    ]

    page = Page(busbw_page(launches, "all_reduce", "bfloat16"))

    keys = [(found["class"], found["d"]) for tag, found in page.tags if tag == "path"][:24]
    assert len(set(keys)) == 24


def test_a_page_without_numbers_says_so() -> None:
    page = Page(busbw_page([launch(0, (), error="it hung")], "all_reduce", "bfloat16"))

    assert page.of("p") == ["No launch could be used, so there is nothing to show."]
