"""Texts for property tests: real files with a piece cut out, another put in, and an end that may be missing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

_INTRUDERS = ["<cpu>", "</pci>", "<pci", '"', "/>", "9" * 5000, "\t", "&b;", ",,", "\n#", "-"]


def broken(texts: Sequence[str]) -> st.SearchStrategy[str]:
    """One of the texts, changed in one place and cut off somewhere behind it."""
    places = st.tuples(st.floats(0, 1), st.integers(0, 400), st.floats(0, 1))
    intruders = st.one_of(st.text(max_size=30), st.sampled_from(_INTRUDERS))
    return st.builds(_changed, st.sampled_from(list(texts)), places, intruders)


def _changed(text: str, place: tuple[float, int, float], intruder: str) -> str:
    start = int(place[0] * len(text))
    rest = text[start + place[1] :]
    return text[:start] + intruder + rest[: int(place[2] * len(rest)) + 1]
