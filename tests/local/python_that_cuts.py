"""Stands in for a node's Python: runs a node program, and cuts the session that asked for it when told to.

Called as `python3 python_that_cuts.py FILE -c LOADER SIZE`. While FILE exists, a writer's request whose `op` it names
gets no answer: the sshd of this very session is killed. A write has been carried out by then, a restore has not.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any


def main(order: Path, size: int) -> int:
    stdin = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    source = b""
    while len(source) < size:
        source += stdin.read(size - len(source)) or sys.exit("no program")
    name, module = load(json.loads(source))
    if name != "writer" or not order.exists():
        return int(module.main(stdin))
    request = b""
    while piece := stdin.read(1 << 16):
        request += piece
    operation = json.loads(request)["op"]
    if operation not in order.read_text().split():
        return int(module.main(io.BytesIO(request)))
    if operation == "write":
        with contextlib.redirect_stdout(io.StringIO()):
            module.main(io.BytesIO(request))
    os.kill(sshd_of_this_session(), signal.SIGKILL)
    return 1


def load(bundle: list[list[str]]) -> tuple[str, Any]:
    """The modules of a program, as the usual loader makes them; the last one's name and itself."""
    for package in ("topo_tune", "topo_tune.on_node"):
        sys.modules[package] = types.ModuleType(package)
    for name, source in bundle:
        module = types.ModuleType(f"topo_tune.on_node.{name}")
        sys.modules[module.__name__] = module
        setattr(sys.modules["topo_tune.on_node"], name, module)
        exec(compile(source, f"<topo-tune {name}>", "exec"), module.__dict__)
    return name, module


def sshd_of_this_session() -> int:
    """The nearest ancestor that is an sshd."""
    pid = os.getppid()
    while not Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, "this was not started by an sshd"
    return pid


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[-1])))
