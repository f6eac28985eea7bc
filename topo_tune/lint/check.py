"""The whole of lint: a text of settings and an NCCL version to messages. Pure functions; nothing is opened here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from topo_tune.lint.caution import caution
from topo_tune.lint.formats import read, recognise
from topo_tune.lint.message import Format, LintedFile, Message, message
from topo_tune.lint.names import names
from topo_tune.lint.setting import Listing, Target
from topo_tune.lint.together import together
from topo_tune.lint.values import missing_paths, values

LONGEST_TEXT = 1 << 18
"""Characters that are read: more settings than anybody writes, and half a second of work at the worst."""

# What a line of a log has in front of an `=` may hold the word too; a name of a variable holds no blank.
_NAME = re.compile(r"\w*NCCL\w*", re.IGNORECASE)

MOST_SETTINGS = 2000
MOST_MESSAGES = 300


def lint(
    text: str,
    target: Target,
    *,
    path: str = "-",
    format: Format | None = None,
    exists: Callable[[str], bool] | None = None,
) -> LintedFile:
    """Everything about one text, in its order. `exists` asks whether a file that a setting names is there."""
    format = format or recognise(text[:LONGEST_TEXT], path)
    listing = _shortened(read(text[:LONGEST_TEXT], format, target))
    found = sorted(
        [*_of_the_text(text, listing), *_all_of(listing, target, exists)],
        key=lambda said: (said.line, said.column or 0),
    )
    return LintedFile(
        path=path,
        format=format,
        settings=len(listing.settings),
        messages=tuple(found[:MOST_MESSAGES]),
        left_out=max(0, len(found) - MOST_MESSAGES),
    )


def _all_of(listing: Listing, target: Target, exists: Callable[[str], bool] | None) -> Iterator[Message]:
    yield from listing.messages
    yield from names(listing, target)
    yield from values(listing, target)
    yield from together(listing, target)
    yield from caution(listing, target)
    if exists is not None:
        yield from missing_paths(listing, exists)


def _shortened(listing: Listing) -> Listing:
    return Listing(listing.format, listing.settings[:MOST_SETTINGS], listing.messages[:MOST_MESSAGES])


def _of_the_text(text: str, listing: Listing) -> Iterator[Message]:
    if len(text) > LONGEST_TEXT:
        said = f"the text has {len(text)} characters; lint reads the first {LONGEST_TEXT}"
        yield message("file-cut", said)
    if _has_content(text) and not any(_NAME.fullmatch(setting.name) for setting in listing.settings):
        yield message("nothing-found", f"no NCCL setting found, read as {listing.format.value}")


def _has_content(text: str) -> bool:
    lines = (line.strip() for line in text[:LONGEST_TEXT].splitlines())
    return any(line and not line.startswith("#") for line in lines)
