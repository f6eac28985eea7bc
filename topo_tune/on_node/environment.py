"""The environment of a rank as NCCL sees it: variables put in for one variant, and what really is in force.

NCCL writes the lines of its files into the C environment of the process, where Python's `os.environ` does not see
them. Runs on the node, Python 3.8 and newer, standard library only.
"""

from __future__ import annotations

import ctypes
import os
from typing import Dict, Mapping

from topo_tune.on_node import nccl_conf

# Loaded before any fork: a rank must not take the dynamic loader's lock, which another thread may have held.
_LIBC = ctypes.CDLL(None)


class VariantEnvironment:
    """The variables of one variant at a time, over those that the whole process has."""

    def __init__(self) -> None:
        # What a file says counts as the process's own: NCCL has read the file once when the second variant begins.
        self._own = dict(os.environ)
        self._own.update({name: value for name, (value, _) in nccl_conf.resolve(self._own).items()})
        self._added: Mapping[str, str] = {}
        self.back: Dict[str, str] = {}
        """what variants replaced and the process has by itself: in force again, and no variant's left-over"""

    def apply(self, variables: Mapping[str, str]) -> None:
        """Have exactly these besides the process's own; those of the variant before are gone."""
        for name in self._added:
            if name in self._own:
                os.environ[name] = self._own[name]
                if name not in nccl_conf.SECRETS:
                    self.back[name] = self._own[name]
            else:
                os.environ.pop(name, None)
        os.environ.update(variables)
        self._added = dict(variables)


def settings_in_force() -> Dict[str, str]:
    """Every NCCL variable in this process's C environment, in order of name; secrets without their value."""
    found: Dict[str, str] = {}
    place = ctypes.POINTER(ctypes.c_char_p).in_dll(_LIBC, "environ")
    index = 0
    while place and place[index] is not None:
        name, _, value = place[index].decode("utf-8", "replace").partition("=")
        if name.startswith("NCCL_"):
            found[name] = nccl_conf.NOT_KEPT if name in nccl_conf.SECRETS else value
        index += 1
    return dict(sorted(found.items()))
