"""Scripts without an extension, imported as modules."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load_script(name: str) -> Any:
    """The module of a script of this repository."""
    own = name.replace("-", "_")
    if own in sys.modules:
        return sys.modules[own]
    loader = importlib.machinery.SourceFileLoader(own, str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(own, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Neither a compiled file beside the script, nor a name that its records cannot be found under.
    sys.modules[own] = module
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module
