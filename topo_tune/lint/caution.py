"""Settings that do what they say, and that deserve a second thought where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from topo_tune.lint.message import Format, Message
from topo_tune.lint.number import read_number
from topo_tune.lint.owners import DEBUGGING_ONLY
from topo_tune.lint.setting import Listing, Setting, Target, listed
from topo_tune.records.catalogue import catalogue
from topo_tune.records.finding import Severity


class _Risk(msgspec.Struct, frozen=True):
    """A value with a price."""

    value: int
    text: str


_RISKS: Mapping[str, _Risk] = {
    "NCCL_GDR_FLUSH_DISABLE": _Risk(
        1, "without the flush a GPU can read data that has not arrived yet: results may be wrong"
    ),
    "NCCL_IB_RETURN_ASYNC_EVENTS": _Risk(
        0, "NCCL goes on after a fatal event of the device: a job may hang in place of failing"
    ),
    "NCCL_GRAPH_MIXING_SUPPORT": _Risk(
        0, "a program that mixes captured and plain calls all the same may hang"
    ),
    "NCCL_GRAPH_STREAM_ORDERING": _Risk(
        0, "the program must keep NCCL's kernels in order by itself, or it may hang"
    ),
    "NCCL_LAUNCH_RACE_FATAL": _Risk(0, "two threads that launch on one device may hang without a message"),
    "NCCL_LEGACY_CUDA_REGISTER": _Risk(1, "registering memory of `cudaMalloc` may hang"),
    "NCCL_MULTI_RANK_GPU_ENABLE": _Risk(
        1, "experimental: ranks that share a GPU may run out of resources and hang"
    ),
    "NCCL_IB_PCI_RELAXED_ORDERING": _Risk(
        1, "NCCL fails where the verbs library cannot do it; 2, the default, tries and goes on"
    ),
    "NCCL_MNNVL_ENABLE": _Risk(
        1, "communicators fail to start where NVLink does not span nodes; 2, the default, detects it"
    ),
}
"""Sources: notes of the catalogue and NVIDIA/nccl docs/userguide/source/env.rst."""

_MILD = {"NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_MNNVL_ENABLE"}
"""A plain failure at the start, which everybody sees."""


def caution(listing: Listing, target: Target) -> Iterator[Message]:
    """Risky values, verbose logs, and what NVIDIA or the other ranks have to say about a name."""
    for setting in listing.settings:
        yield from risk(setting)
        yield from verbose(setting)
    yield from must_match(listing, target)
    yield from debugging_only(listing)


def risk(setting: Setting) -> Iterator[Message]:
    """A value that can corrupt data, hang or end a job."""
    price = _RISKS.get(setting.name)
    if price is None or not setting.is_plain or not setting.value.strip():
        return
    if read_number(setting.value).value == price.value:
        mild = Severity.NOTICE if setting.name in _MILD else None
        yield setting.about("risky-value", price.text, severity=mild)


def verbose(setting: Setting) -> Iterator[Message]:
    """Logs and checks that slow every job."""
    word = setting.value.strip().upper() if setting.is_plain else ""
    if setting.name == "NCCL_DEBUG" and word == "TRACE":
        text = "TRACE prints every call in a build made for it, and is INFO in all others"
        yield setting.about("verbose-log", text, "`WARN` for every day", severity=Severity.WARNING)
    elif setting.name == "NCCL_DEBUG" and word == "INFO":
        text = "INFO slows small messages and floods logs: never measure with it"
        yield setting.about("verbose-log", text, "`WARN` for every day")
    elif setting.name == "NCCL_CHECK_MODE" and word in ("DEBUG_LOCAL", "DEBUG_GLOBAL"):
        yield setting.about("verbose-log", "arguments are checked at every call", "`DEFAULT` for every day")
    elif setting.name == "NCCL_CHECK_POINTERS" and word == "1":
        yield setting.about("verbose-log", "pointers are checked at every call")


def must_match(listing: Listing, target: Target) -> Iterator[Message]:
    """What all ranks must share, in a file that each node has for itself: one message for all of them."""
    if listing.format is not Format.CONF:
        return
    shared = _live(listing.settings, target, {n for n, v in catalogue().items() if v.must_match_across_ranks})
    if shared:
        text = f"{listed(shared)} must be the same on every rank of a job: keep this file alike on all nodes"
        yield shared[0].about_name(
            "must-match", text, "change it on all nodes while no job spans old and new"
        )


def debugging_only(listing: Listing) -> Iterator[Message]:
    """What NVIDIA's guide lists for experiments: one message for all of it."""
    named = [s for s in listing.settings if s.name in DEBUGGING_ONLY]
    if named:
        verb = "stands" if len({s.name for s in named}) == 1 else "stand"
        text = f"{listed(named)} {verb} under Debugging in NVIDIA's guide, which says to remove such settings again"
        yield named[0].about_name("debugging-only", text, "keep what you have measured to help")


def _live(settings: Sequence[Setting], target: Target, names: set[str]) -> list[Setting]:
    known = catalogue()
    return [s for s in settings if s.name in names and known[s.name].exists_in(target.version)]
