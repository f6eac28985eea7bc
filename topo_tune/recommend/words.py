"""How numbers are said in reasons."""

from __future__ import annotations


def times(ratio: float) -> str:
    """A speed-up as a factor: `1.93x`; above one is faster than the default."""
    return f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share as per cent: `3 %`, `0.4 %`, `200 %`."""
    return f"{float(f'{share * 100:.3g}'):g} %"
