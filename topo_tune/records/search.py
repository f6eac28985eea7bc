"""The space of settings that was searched, and the trace of the search."""

from __future__ import annotations

import msgspec

from topo_tune.records.nccl_env import NcclEnv

PURPOSE_BASELINE = "baseline"
"""`Launch.purpose` of NCCL's default while candidates are screened"""
PURPOSE_CANDIDATE = "candidate"
"""... of a candidate that is screened"""
PURPOSE_PRUNE = "prune"
"""... of the best candidate, beside itself less one dimension"""
PURPOSE_CONFIRM = "confirm"
"""... of the default and the finalists in the confirmation: all that a recommendation rests on"""


class SearchVariable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One dimension of the space: one or more variables that move together, and the values they may take."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    """besides leaving it unset; every name gets the same value"""
    reason: str
    """why it is searched here"""


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable or value that is not searched, and why."""

    name: str
    reason: str


class SearchSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dimensions, and what was left out."""

    variables: tuple[SearchVariable, ...]
    left_out: tuple[LeftOut, ...]
    combinations: int
    """settings in the full grid that break no rule"""


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate against NCCL's default at one message size."""

    size_bytes: int
    weight: float
    baseline_seconds: float
    candidate_seconds: float
    speedup: float
    """baseline time over candidate time; above 1 is faster"""
    low: float
    high: float
    """interval of the speed-up"""
    launches: int
    """launches on each side"""


class TraceStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One launch of the search: which setting, in which phase, and how it scored."""

    launch: int
    """index of the launch in 30-bench.jsonl"""
    phase: str
    """screen-1, screen-2, ..., confirm"""
    env: NcclEnv
    score: float | None
    """weighted mean of log speed-up over the neighbouring baselines, less the penalty for slower sizes;
    None: failed"""
    note: str = ""
    block: int | None = None
    """in the confirmation: which block of adjacent launches it belongs to, from 1"""


class SettingEffect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one dimension of a setting brings, measured beside the same setting without it."""

    settings: tuple[tuple[str, str], ...]
    """(name, value) of the variables that move together"""
    benefit: float
    """speed-up of the whole setting over itself without this; weighted geometric mean over the sizes"""
    low: float
    high: float
    """interval of `benefit`, with the confidence of search/prune.py"""
    best_size_bytes: int
    """the weighted size at which it surely brings most"""
    best_size_benefit: float
    best_size_low: float
    launches: int
    """launches on each side"""


class SearchTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the search went."""

    strategy: str
    seed: int
    space: SearchSpace
    candidates: tuple[NcclEnv, ...]
    steps: tuple[TraceStep, ...]
    finalists: tuple[NcclEnv, ...]
    """settings that went on to confirmation, best first"""
    effects: tuple[SettingEffect, ...] = ()
    """what each dimension of the first finalist brings; empty when it was not pruned, or has only one"""
