"""Tables of NCCL's example tuner plugin, as the plugin reads them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from broken_texts import broken
from golden_facts import FACTS, SHARED, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.nccl_documents import ANY_SIZE, TunerRule
from topo_tune.scan.documents.tuner_table import parse, recognise

CSCS = FACTS / "config" / "cscs-nccl-tuner-v226.conf"
EXAMPLE = FACTS / "config" / "nvidia-example-nccl-tuner.conf"
OTHERS = [
    file
    for file in sorted((SHARED if SHARED.is_dir() else FACTS).rglob("*"))
    if file.is_file() and "tuner" not in file.name and file.name != "SOURCES.md"
]
RULE = "allreduce,0,65536,tree,ll,4,2,16"


def rule(line: str) -> TunerRule:
    (found,) = parse(line)[0].rules
    return found


def test_the_table_of_cscs_has_fourteen_rules_about_all_reduce() -> None:
    body, problems = parse(text_of(CSCS))

    assert len(body.rules) == 14
    assert {rule.collective for rule in body.rules} == {"all_reduce"}
    assert (body.rules[0].nodes, body.rules[0].ranks) == (2, 8)
    assert (body.rules[-1].nodes, body.rules[-1].ranks) == (256, 1024)
    assert [rule.min_bytes for rule in body.rules if rule.nodes >= 64] == [536870912, 1073741824, 2147483648]
    assert {rule.channels for rule in body.rules} == {-1}
    assert problems == (
        "line 1 and 13 more: `all_reduce` is no collective and is taken for allreduce; did you mean `allreduce`?",
    )


def test_the_example_of_nvidia_has_rules_with_and_without_optional_fields() -> None:
    body, problems = parse(text_of(EXAMPLE))

    assert problems == ()
    assert [rule.collective for rule in body.rules] == (
        ["allreduce"] * 3 + ["broadcast"] * 2 + ["allgather"] + ["reducescatter"] * 2 + ["reduce"]
    )
    assert body.rules[0] == TunerRule(19, "allreduce", 0, 65536, "tree", "simple", 2, 1, -1, -1, 1)
    assert body.rules[2].protocol == "ll128"
    assert (body.rules[5].pipe_ops, body.rules[5].registered) == (None, None)


@pytest.mark.parametrize("file", [CSCS, EXAMPLE], ids=lambda file: file.stem)
def test_both_tables_are_recognised(file: Path) -> None:
    assert recognise(text_of(file))


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_file_of_another_kind_is_taken_for_a_table(file: Path) -> None:
    assert not recognise(text_of(file)[: 256 << 10])


def test_measurements_for_the_plugins_optimizer_are_no_table() -> None:
    assert not recognise(
        "collective,size_bytes,algorithm,protocol,channels\nallreduce,1024,ring,ll,4,2,16,1,0,1.5\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        RULE,
        " allreduce , 0,\t65536 , tree, ll,4 ,2 , 16 ",
        RULE + "\r",
        RULE + ",",
        "allreduce,,0,65536,tree,,ll,4,2,16",
        "# a comment\n\n" + RULE,
        "\ufeff" + RULE,
    ],
)
def test_blanks_carriage_returns_and_repeated_commas_change_nothing(line: str) -> None:
    body, problems = parse(line)

    assert [
        (r.collective, r.max_bytes, r.algorithm, r.protocol, r.channels, r.ranks) for r in body.rules
    ] == [("allreduce", 65536, "tree", "ll", 4, 16)]
    assert problems == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("all_gather,0,9,ring,ll,4,2,16", "`all_gather` is no collective and is taken for allreduce"),
        ("AllReduce,0,9,ring,ll,4,2,16", "`AllReduce` is no collective and is taken for allreduce"),
        (
            "allreduce,0,9,nvlstree,ll,4,2,16",
            "`nvlstree` is no algorithm and is taken for ring; did you mean `nvls_tree`?",
        ),
        (
            "allreduce,0,9,ring,LL128,4,2,16",
            "`LL128` is no protocol and is taken for simple; did you mean `ll128`?",
        ),
        ("allreduce,0,4M,ring,ll,4,2,16", "`4M` is read as 4"),
        ("allreduce,0,9,ring,ll,auto,2,16", "`auto` is read as 0"),
        ("allreduce,9,3,ring,ll,4,2,16", "from 9 to 3 bytes is no range, so it never holds"),
        (RULE + ",1,0,7", "11 fields, of which the plugin reads 10"),
    ],
)
def test_what_the_plugin_misreads_in_silence_is_told(line: str, problem: str) -> None:
    _, problems = parse(line)

    assert any(problem in told for told in problems)


def test_a_rule_with_too_few_fields_is_skipped_and_told() -> None:
    body, problems = parse(RULE + "\nallreduce,65537,131072,ring,simple,8,2\n  # indented comment\n")

    assert [rule.line for rule in body.rules] == [1]
    assert problems == ("line 2: 7 fields, and the plugin skips what has fewer than 8",)


def test_column_names_are_no_rule_of_ours_and_one_of_the_plugins() -> None:
    body, problems = parse("collective,min,max,algorithm,protocol,channels,nodes,ranks\n" + RULE)

    assert [rule.line for rule in body.rules] == [2]
    assert problems == ("line 1: column names, which the plugin takes for a rule about 0 bytes",)


def test_a_table_without_nodes_and_ranks_is_recognised_and_refused_with_the_reason() -> None:
    text = "# collective,minBytes,maxBytes,algorithm,protocol,channels\nallreduce,0,98304,tree,ll,-1\n"

    assert recognise(text)
    with pytest.raises(InputError, match="line 2: 6 fields, and the plugin skips what has fewer than 8"):
        parse(text)


def test_a_line_that_the_plugin_cuts_is_told() -> None:
    _, problems = parse(RULE + " " * 300)

    assert "line 1: 332 characters, of which the plugin reads 255" in problems[0]


def test_minus_one_as_the_largest_size_has_no_end() -> None:
    assert rule("allreduce,0,-1,ring,simple,8,-1,-1").max_bytes == ANY_SIZE


def test_numbers_beyond_all_bounds_stay_within_a_record() -> None:
    found = rule(f"allreduce,0,{'9' * 100},ring,simple,{'9' * 19},-{'9' * 19},1")

    assert found.max_bytes == ANY_SIZE
    assert (found.channels, found.nodes) == ((1 << 31) - 1, -(1 << 31))


def test_a_rule_says_what_the_plugin_takes_it_for() -> None:
    assert rule("all_gather,0,9,Tree,ll,4,2,16").taken == {
        "collective": "allreduce",
        "algorithm": "ring",
        "protocol": "ll",
    }


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "NCCL_ALGO=ring\n"])
def test_a_text_without_rules_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no tuner rule"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        (RULE + "\n") * 150_000,
        "\n" * 5_000_000,
        "," * 5_000_000,
        "allreduce," + "0" * 5_000_000 + ",1,ring,ll,4,2,16",
        "allreduce,0,1," + "ring," * 1_000_000,
        ("allreduce" + " " * 8) * 300_000,
        "x,1,2,3,4,5,6,7\n" * 300_000,
    ],
)
def test_five_megabytes_of_nonsense_take_no_time(text: str) -> None:
    start = time.perf_counter()
    recognise(text)
    try:
        parse(text)
    except InputError:
        pass

    assert time.perf_counter() - start < 2


@settings(max_examples=60, deadline=None)
@given(st.one_of(broken([text_of(CSCS), text_of(EXAMPLE)]), st.text(max_size=200)))
def test_any_text_gives_rules_or_a_reason(text: str) -> None:
    recognise(text)
    try:
        body, problems = parse(text)
    except InputError:
        return

    assert body.rules
    assert len(problems) < 200
