"""Texts to try readers of saved files with: real files damaged in many ways, and texts that nobody wrote."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.document import DocumentBody

BEGINNING = 256 << 10
LINE = 400


def beginning(text: str) -> str:
    """What `recognise` gets of a file."""
    return "\n".join(line[:LINE] for line in text[:BEGINNING].split("\n"))


def damaged(texts: list[str]) -> st.SearchStrategy[str]:
    """One of the texts: cut off, its lines shuffled, characters changed; or any text at all."""
    return st.one_of(
        st.text(max_size=400),
        st.binary(max_size=400).map(lambda data: data.decode("utf-8", "replace")),
        st.sampled_from(texts).flatmap(_cut),
        st.sampled_from(texts).flatmap(_shuffled),
        st.sampled_from(texts).flatmap(_changed),
    )


def _cut(text: str) -> st.SearchStrategy[str]:
    return st.integers(0, len(text)).map(lambda end: text[:end])


def _shuffled(text: str) -> st.SearchStrategy[str]:
    return st.permutations(text.split("\n")[:60]).map("\n".join)


def _changed(text: str) -> st.SearchStrategy[str]:
    def change(spots: list[tuple[int, str]]) -> str:
        changed = text
        for spot, put in spots:
            at = spot % (len(changed) + 1)
            changed = changed[:at] + put + changed[at + len(put) :]
        return changed

    put = st.sampled_from(
        ["[", "]", "{", "}", '"', "'", "#", "=", ":", ",", "\\", "-", "\t", "\r\n", "9" * 5000, "\0", "é"]
    )
    return st.lists(st.tuples(st.integers(0, 1 << 20), put), min_size=1, max_size=12).map(change)


def read_or_refused(
    parse: Callable[[str, str], tuple[DocumentBody, tuple[str, ...]]], text: str
) -> tuple[DocumentBody, tuple[str, ...]] | None:
    """What a reader makes of a text; None where it refuses it, briefly and with the file's name."""
    try:
        return parse(text, "some-file")
    except InputError as error:
        refusal = str(error)
    assert "some-file" in refusal
    assert len(refusal) < 1000
    return None


def huge(line: str, characters: int = 5_000_000) -> tuple[str, str]:
    """A text of that many characters made of this line; and one single line of them."""
    return (line + "\n") * (characters // (len(line) + 1)), line * (characters // len(line))
