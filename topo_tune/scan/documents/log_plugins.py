"""What a log tells of plugins: which were loaded, and which were asked for in vain.

NCCL looks for `libnccl-net.so`, `libnccl-tuner.so` and the like on its own, and says so when they are not there: only a
plugin that a variable names, or one that is there and cannot be loaded, is worth a word (`src/plugin/plugin_open.cc`).
"""

from __future__ import annotations

import re

from topo_tune.scan.facts.words import clipped

_MOST = 64
_ASKED = {
    "NCCL_NET_PLUGIN": "NET",
    "NCCL_TUNER_PLUGIN": "TUNER",
    "NCCL_PROFILER_PLUGIN": "PROFILER",
    "NCCL_ENV_PLUGIN": "ENV",
}
_LOADED = (
    re.compile(
        r"(?:NET|TUNER|PROFILER|GIN|ENV)/Plugin ?: (?:Loaded (?P<kind>\w{1,10}) plugin|Loaded|Using) (?P<name>.{1,80})$"
    ),
    re.compile(r"Successfully loaded external (?P<kind>\w{1,10} )?plugin (?P<name>.{1,200})$"),
)
_NOT_FOUND = re.compile(r"(\w{1,10})/Plugin ?: Could not find: ?(.{1,300})$")
_NOT_LOADED = re.compile(
    r"(?P<kind>\w{1,10})/Plugin ?: (?:Plugin load (?:\((?P<asked>\S{1,200})\) )?returned \d{1,3} : )?"
    r"(?P<library>\S{0,200}\.so[\w.]{0,20}): (?P<reason>.{1,300})$"
)
_NO_SYMBOL = re.compile(r"Failed to find ncclCollNetPlugin|Failed to find nccl\w{1,20}Plugin_v\d{1,2} symbol")
_GAVE_UP = re.compile(
    r"NET/OFI (?:aws-ofi-nccl (initialization failed)|Could(?: not|n't) (find any optimal provider)\s*$)"
)
"""A network plugin that was loaded and then declined: NCCL goes on with its own transports."""
_DEFAULT = re.compile(r"lib[nr]ccl-(?:net|tuner|profiler|env|gin|rma)\.so(?:\.[\d.]{1,10})?$")


class Plugins:
    """Plugins of one log."""

    def __init__(self) -> None:
        self._loaded: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._missing: dict[tuple[str, str], None] = {}
        self._asked: set[str] = set()
        self._lacks_symbols = False

    def asked(self, variable: str, value: str) -> None:
        """A variable that the log shows as set."""
        if variable in _ASKED and value.casefold() != "none":
            self._asked.add(_ASKED[variable])

    def look(self, text: str) -> None:
        """One message about plugins, or any other that begins alike."""
        if _NO_SYMBOL.search(text[:200]):
            self._lacks_symbols = True
            return
        if re.match(r"NET/Plugin ?: Plugin name set by env", text):
            self._asked.add("NET")
            return
        for pattern in _LOADED:
            found = pattern.match(text)
            if found is not None and len(self._loaded) < _MOST:
                kind = (found["kind"] or text.split("/", 1)[0]).strip().casefold()
                self._loaded[f"{'net' if kind.startswith('success') else kind} {found['name'].strip()}"] = (
                    None
                )
                return
        self._look_for_failure(text)

    def _look_for_failure(self, text: str) -> None:
        missing = _NOT_FOUND.match(text)
        if missing is not None and len(self._missing) < _MOST:
            self._missing[missing.group(1), clipped(missing.group(2), 200)] = None
            return
        declined = _GAVE_UP.match(text)
        if declined is not None:
            reason = declined[1] or f"could not {declined[2]}"
            self._failed[f"net plugin aws-ofi-nccl: {reason}"] = None
            return
        broken = _NOT_LOADED.match(text)
        if broken is None or len(self._failed) >= _MOST:
            return
        kind, asked, library, reason = broken.groups()
        # Where the library that is not there is the plugin itself, this says no more than `Could not find`.
        if "No such file or directory" in reason and (library == asked or library in reason):
            self._missing[kind, library] = None
        else:
            self._failed[f"{kind.casefold()} plugin {library}: {clipped(reason, 200)}"] = None

    @property
    def loaded(self) -> tuple[str, ...]:
        """`net AWS Libfabric (v10)`, `tuner libnccl-tuner-x.so`, in order of appearance."""
        return tuple(self._loaded)

    @property
    def failed(self) -> tuple[str, ...]:
        """What was asked for, or is there, and was not loaded: in words."""
        missing = [
            f"{kind.casefold()} plugin {names}: no such library"
            for kind, names in self._missing
            if kind in self._asked or not all(_DEFAULT.match(name) for name in names.rstrip(".").split())
        ]
        return (*self._failed, *missing)

    @property
    def notes(self) -> tuple[str, ...]:
        """What looks like a failure and is none."""
        if not self._lacks_symbols:
            return ()
        return ("a plugin lacks the newest interface and is used through an older one: harmless",)
