"""The style of a page of curves: for light and dark ground, and for screens of any width."""

from __future__ import annotations

from collections.abc import Sequence

# Colours that people with any colour vision tell apart (Okabe and Ito, 2008); lighter ones on dark ground.
_LIGHT = ("#222222", "#d55e00", "#0072b2", "#008c66", "#a0527e", "#9a6a00", "#3d7fa6", "#6b6b00")
_DARK = ("#eeeeee", "#ff8c42", "#56b4e9", "#2fc99a", "#e29cc3", "#e6b03c", "#9fd3f2", "#e0dc5a")


def _colours(colours: Sequence[str]) -> str:
    return "".join(f"--c{number}: {colour}; " for number, colour in enumerate(colours))


COLOURS = len(_LIGHT)
"""of curves; what comes after them begins again with the first colour and the next shape"""

STYLE = (
    f":root {{ color-scheme: light dark; --ground: #ffffff; --ink: #1c1c1c; --faint: #dddddd; {_colours(_LIGHT)}}}\n"
    "@media (prefers-color-scheme: dark) {\n"
    f":root {{ --ground: #16181c; --ink: #e6e6e6; --faint: #3a3d44; {_colours(_DARK)}}}\n}}\n"
    + "".join(f".c{number} {{ --own: var(--c{number}); }}\n" for number in range(COLOURS))
    + """\
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 56rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; font-weight: 600; margin-top: 2rem; }
svg { display: block; height: auto; min-width: 34rem; width: 100%; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
figure { margin: 1rem 0; overflow-x: auto; } figcaption, footer, .notes { font-size: 0.9rem; opacity: 0.85; }
.grid { stroke: var(--faint); } .zero { stroke: var(--ink); stroke-width: 1.5; }
.line { fill: none; stroke: var(--own); stroke-width: 1.8; } .bar { fill: none; stroke: var(--own); stroke-width: 1.5; }
.mark { fill: var(--own); stroke: var(--ground); }
.legend { list-style: none; padding: 0; } .legend li { display: flex; gap: 0.6rem; align-items: baseline; }
.legend span { overflow-wrap: anywhere; }
.key { flex: none; height: 1rem; min-width: 0; width: 2.25rem; align-self: center; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--faint); padding: 0.2rem 0.7rem; text-align: right; vertical-align: top; }
td { white-space: nowrap; } tbody th { font-weight: normal; text-align: left; }
thead th:first-child { text-align: left; }
summary { cursor: pointer; } footer { margin-top: 2rem; }
"""
)
