"""Names: misspelt, gone, not there yet, somebody else's."""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from topo_tune.lint.message import Format, Message, quoted
from topo_tune.lint.owners import BUILD_NAMES, FRAMEWORK_NAMES, PYTORCH_OLD_NAMES, Owner, owner_of
from topo_tune.lint.setting import Listing, Setting, Target, listed
from topo_tune.records.catalogue import Misnomer, Variable, catalogue, misnomer_of, other_live_names
from topo_tune.records.finding import Severity

NO_STRING_IN_THE_LIBRARY = frozenset({"NCCL_SOCKET_MAGIC"})
"""Live names that a library does not hold as one string."""

DEPRECATED = {
    "NCCL_MIN_NRINGS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
    "NCCL_CHECK_POINTERS": "NCCL_CHECK_MODE=DEBUG_LOCAL",
}
"""Names that NVIDIA's guide calls deprecated, and what it names in their place."""

RENAMED = {
    "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
    "NCCL_MNNVL": "NCCL_MNNVL_ENABLE",
    "NCCL_WORK_FIFO_DEPTH": "NCCL_WORK_FIFO_BYTES",
    "NCCL_THREAD_THRESHOLD": "NCCL_THREAD_THRESHOLDS",
}

_PREFIX = "NCCL_"
_MISTYPED_PREFIXES = ("NCL_", "NCC_", "NCLC_", "NNCCL_", "NCCCL_", "NCCLL_", "NCLL_", "NCCL__", "NCCL")
"""NCCL_ with one letter lost, doubled or swapped; none of them is another library's (CCL_, CNCL_, RCCL_ are)."""

_MISSPELT = 0.75
"""Likeness, by difflib, from which on a name is taken for a slip of the pen: of two letters in eight."""

_SUGGESTIONS = 60
"""Unknown names of one text that get a suggestion: looking for one takes a millisecond."""


def names(listing: Listing, target: Target) -> Iterator[Message]:
    """Everything about the names of one text."""
    plugins: dict[str, list[Setting]] = defaultdict(list)
    strangers: list[Setting] = []
    looked_up: set[str] = set()
    for setting in listing.settings:
        upper = setting.name.upper()
        if _is_of_the_script(setting, listing.format):
            continue
        if owner := owner_of(setting.name):
            plugins[owner.who].append(setting)
        elif setting.name != upper and (is_known(upper) or upper.startswith(_PREFIX)):
            yield _lower_case(setting, upper)
        elif setting.name in BUILD_NAMES:
            strangers.append(setting)
        elif setting.name.startswith(_PREFIX):
            looked_up.add(setting.name)
            yield from name_of_nccl(setting, listing.format, target, suggest=len(looked_up) <= _SUGGESTIONS)
        elif setting.name.startswith("TORCH_NCCL_"):
            if listing.format is Format.CONF:
                yield _framework(setting, listing.format)
        elif meant := _behind_a_mistyped_prefix(setting.name):
            yield _misspelt(setting, meant)
        elif listing.format is Format.CONF:
            strangers.append(setting)
    for settings in plugins.values():
        yield _of_plugin(settings)
    if strangers:
        yield _not_nccl(strangers)


def _is_of_the_script(setting: Setting, format: Format) -> bool:
    """Whether a script or an image uses the name for itself: `NCCL_HOME=/usr`, `nccl_tests=...`."""
    if format is Format.CONF:
        return False
    is_local = not setting.is_passed and not is_known(setting.name)
    return (
        is_local
        or setting.name in BUILD_NAMES
        or not (is_known(setting.name.upper()) or setting.name.isupper())
    )


def is_known(name: str) -> bool:
    """Whether some NCCL reads it, or did."""
    return name in catalogue() or name in other_live_names()


def name_of_nccl(
    setting: Setting, format: Format, target: Target, *, suggest: bool = True
) -> Iterator[Message]:
    """One name that begins with NCCL_ and is no plugin's."""
    name, variable = setting.name, catalogue().get(setting.name)
    if name == "NCCL_CONF_FILE" and format is Format.CONF:
        text = "NCCL takes it from the environment only, before it reads any file"
        yield setting.about_name("conf-file-in-file", text, "export it where the job starts")
    if variable is not None and not variable.exists_in(target.version):
        yield _of_another_version(setting, variable, target)
    elif _is_lacking(name, target):
        text = f"the library does not contain the name {quoted(name)}, so the setting can have no effect"
        yield setting.about_name("not-in-library", text, "remove it, or use a newer NCCL")
    elif name in DEPRECATED:
        text = f"{quoted(name)} is deprecated; it is still read"
        yield setting.about_name("deprecated-name", text, f"use `{DEPRECATED[name]}`")
    elif not is_known(name) and name not in (target.library_names or ()):
        yield _unknown(setting, format, suggest=suggest)


def _is_lacking(name: str, target: Target) -> bool:
    if target.library_names is None or name in target.library_names:
        return False
    return is_known(name) and name not in NO_STRING_IN_THE_LIBRARY


def _of_another_version(setting: Setting, variable: Variable, target: Target) -> Message:
    first = variable.since or variable.first_tag
    if variable.until is None:
        text = f"{target.nccl} does not read {quoted(setting.name)}, which came with {first}"
        return setting.about_name("too-new-name", text, "remove it, or use a newer NCCL")
    text = f"{quoted(setting.name)} was last read by NCCL {variable.until}"
    if setting.name in RENAMED:
        return setting.about_name("renamed-name", text, f"use `{RENAMED[setting.name]}`")
    return setting.about_name(
        "removed-name", text, (variable.notes[:1].lower() + variable.notes[1:]).rstrip(".")
    )


def _unknown(setting: Setting, format: Format, *, suggest: bool) -> Message:
    misnomer = misnomer_of(setting.name)
    if setting.name in FRAMEWORK_NAMES:
        return _framework(setting, format)
    if misnomer is not None:
        text = f"{quoted(setting.name)} is {not_a_variable(misnomer)}"
        return setting.about_name("misnomer", text, f"use `{misnomer.use}`" if misnomer.use else None)
    near, likeness = nearest_name(setting.name) if suggest else (None, 0.0)
    if near is not None and likeness >= _MISSPELT:
        return _misspelt(setting, near)
    text = f"no NCCL from 2.3 on reads {quoted(setting.name)}"
    return setting.about_name("unknown-name", text, f"the nearest name is `{near}`" if near else None)


def not_a_variable(misnomer: Misnomer) -> str:
    """What is wrong with a name that people write."""
    return f"no variable of NCCL{'' if misnomer.why == 'no such name' else f': {misnomer.why}'}"


@functools.lru_cache(maxsize=1024)
def nearest_name(name: str) -> tuple[str | None, float]:
    """The live name most like this one, and the likeness from 0 to 1; what all names share does not count."""
    live = {n.removeprefix(_PREFIX): n for n, v in catalogue().items() if v.until is None}
    live |= {n.removeprefix(_PREFIX): n for n in other_live_names()}
    wanted = name.upper().removeprefix(_PREFIX)[:60]
    matches = difflib.get_close_matches(wanted, live, n=1, cutoff=0.6)
    if not matches:
        return None, 0.0
    return live[matches[0]], difflib.SequenceMatcher(None, matches[0], wanted).ratio()


def _misspelt(setting: Setting, meant: str) -> Message:
    text = f"NCCL does not know {quoted(setting.name)}, so the setting has no effect"
    return setting.about_name("misspelt-name", text, f"did you mean `{meant}`?")


def _behind_a_mistyped_prefix(name: str) -> str | None:
    """`NCCL_DEBUG` for `NCLL_DEBUG`."""
    for prefix in _MISTYPED_PREFIXES:
        if name.startswith(prefix):
            meant = _PREFIX + name.removeprefix(prefix)
            return meant if is_known(meant) else None
    return None


def _lower_case(setting: Setting, upper: str) -> Message:
    text = f"NCCL knows no {quoted(setting.name)}: names are in capitals"
    return setting.about_name("lower-case-name", text, f"write {quoted(upper)}")


def _framework(setting: Setting, format: Format) -> Message:
    new = PYTORCH_OLD_NAMES.get(setting.name)
    if setting.name == "NCCL_TIMEOUT":
        text = "NCCL has no time limit for a collective; frameworks have, and set it in their own code"
        return setting.about_name("framework-name", text, "`init_process_group(timeout=...)` in PyTorch")
    text = f"{quoted(setting.name)} is read by PyTorch, not by NCCL"
    if format is not Format.CONF:
        return setting.about_name("framework-name", text, f"its name is `{new}` now" if new else None)
    text += ", and PyTorch does not read this file"
    hint = f"export {quoted(new or setting.name)} where the job starts"
    return setting.about_name("framework-name", text, hint, severity=Severity.WARNING)


def _of_plugin(settings: Sequence[Setting]) -> Message:
    owner = owner_of(settings[0].name)
    assert isinstance(owner, Owner), "only names with an owner come here"
    verb = "is" if len({s.name for s in settings}) == 1 else "are"
    text = f"{listed(settings)} {verb} read by {owner.who}, not by NCCL itself"
    return settings[0].about_name("plugin-name", text, "nothing happens where that plugin is not loaded")


def _not_nccl(settings: Sequence[Setting]) -> Message:
    text = f"NCCL puts {listed(settings)} into the process's environment and does not read it"
    hint = "a program that looks at its environment before NCCL starts does not see it"
    return settings[0].about_name("not-nccl-name", text, hint)
