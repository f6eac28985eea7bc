"""Lint takes any text, in any format, and is done at once."""

from __future__ import annotations

import time

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.lint.check import MOST_MESSAGES, lint
from topo_tune.lint.message import Format
from topo_tune.lint.number import read_number
from topo_tune.lint.rules import RULES
from topo_tune.lint.setting import Target
from topo_tune.records.catalogue import catalogue

NEWEST = Target((2, 30, 7), frozenset({"NCCL_DEBUG"}))
SAMPLES = [
    text_of(file) for file in sorted((FACTS / "config").glob("*")) if file.suffix in (".conf", ".env", ".txt")
]
LARGE = 5_000_000
SECONDS = 1.0

pieces = st.one_of(
    st.text(max_size=40),
    st.sampled_from(sorted(catalogue())),
    st.sampled_from(
        [
            "=",
            "\n",
            "\r\n",
            " ",
            '"',
            "'",
            "$((",
            "))",
            "${",
            "}",
            "\\\n",
            "#",
            "^",
            ":",
            ";",
            ",",
            "- name: ",
            "export ",
        ]
    ),
    st.sampled_from(["  value: ", "-x ", "--export=", "{{", "0x", "4M", "\0", "\ufeff", "9" * 30]),
)
texts = st.one_of(
    st.text(max_size=200),
    st.lists(pieces, max_size=30).map("".join),
    st.builds(
        lambda text, cut, extra, at: text[:at] + extra + text[at:cut],
        st.sampled_from(SAMPLES),
        st.integers(0, 1500),
        st.text(max_size=20),
        st.integers(0, 800),
    ),
)


@settings(max_examples=60, deadline=None)
@given(text=texts, format=st.one_of(st.none(), st.sampled_from(Format)))
def test_any_text_gives_messages_of_known_rules_in_its_order(text: str, format: Format | None) -> None:
    linted = lint(text, NEWEST, format=format, exists=lambda path: False)

    assert {message.rule for message in linted.messages} <= set(RULES)
    lines = [message.line for message in linted.messages]
    assert lines == sorted(lines)
    assert all(0 <= line <= text.count("\n") + 1 for line in lines)
    assert all(len(message.text) < 1000 for message in linted.messages)


@settings(max_examples=60, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=30), st.from_regex(r"[ \t]*[-+]?(0x)?[0-9a-f]{1,80}[KMG]?", fullmatch=True)
    )
)
def test_any_text_has_a_number(text: str) -> None:
    number = read_number(text)

    assert text.endswith(number.rest)
    assert number.overflows or -(1 << 63) <= number.value < 1 << 63


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("10", 10, ""),
        ("-2", -2, ""),
        ("+3", 3, ""),
        ("0x10", 16, ""),
        ("010", 8, ""),
        ("08", 0, "8"),
        ("4M", 4, "M"),
        ("true", 0, "true"),
        ("0x", 0, "x"),
        (" 7 ", 7, " "),
        ("1.5", 1, ".5"),
        ("", 0, ""),
    ],
)
def test_numbers_are_read_as_strtoll_does(text: str, value: int, rest: str) -> None:
    number = read_number(text)

    assert (number.value, number.rest) == (value, rest)


@pytest.mark.parametrize(
    "unit",
    [
        "\n",
        "a\n",
        "nccl",
        "NCCL_BUFFSIZE=4M\n",
        'export NCCL_IB_X="a b"\n',
        "export NCCL_A=1 \\\n",
        'nccl"',
        "nccl ${a",
        "nccl $((",
        "NCCL_A='",
        "-x NCCL_A=1 ",
        "--export=ALL,NCCL_A=1,",
        "- name: NCCL_A\n  value: 1\n",
        "NCCL_ALGO=;,:^",
        " ",
        "- ",
        "<a ",
        "\\",
        "\0",
        "\r",
        "NCCL_A=<",
    ],
)
def test_five_megabytes_take_less_than_a_second(unit: str) -> None:
    text = "NCCL_ALGO=" + unit * (LARGE // len(unit))
    begin = time.process_time()

    found = [lint(text, NEWEST, format=format) for format in (None, *Format)]

    assert time.process_time() - begin < SECONDS * len(found)
    assert all(len(linted.messages) <= MOST_MESSAGES for linted in found)


def test_many_names_that_nobody_knows_are_looked_up_only_so_often() -> None:
    text = "".join(f"NCCL_UNHEARD_OF_{number}=1\n" for number in range(100_000))
    begin = time.process_time()

    linted = lint(text, NEWEST)

    assert time.process_time() - begin < SECONDS
    assert len(linted.messages) == MOST_MESSAGES
    assert linted.left_out > 1000
