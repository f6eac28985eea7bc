"""How a command becomes the argument vector that really runs: bounded in time, quoted for a login shell.

Pure: nothing here touches a node.
"""

from __future__ import annotations

import math
import shlex

from topo_tune.connect.interface import Command
from topo_tune.connect.program import program_of

NOT_FOUND_STATUS = 127
"""what a shell reports for a command that does not exist"""
NOT_EXECUTABLE_STATUS = 126

GRACE_SECONDS = 1
"""The node's own clock runs this much longer than ours, so that ours decides and the node's only tidies up.
"""

# An ssh client that closes its channel does not end the command on the node (measured: it goes on for ever),
# so the node gets a clock of its own. `timeout` is tried first because old BusyBox versions want other
# options; the trailing `exit` keeps the shell from replacing itself, so that a death by signal arrives as
# status 128 + signal and status -1 is left to mean a lost connection.
_BOUNDED = (
    'n=$1; shift; if timeout -k 5 1 true 2>/dev/null; then timeout -k 5 "$n" "$@"; else "$@"; fi; exit $?'
)


def bounded(argv: tuple[str, ...], deadline_seconds: float) -> tuple[str, ...]:
    """The same command under a clock on the node, which ends it a little after the deadline.

    Its exit status is the command's own; 128 + signal when a signal killed it. Where the node has no
    `timeout` the command runs without the clock.
    """
    seconds = math.ceil(deadline_seconds) + GRACE_SECONDS
    return ("sh", "-c", _BOUNDED, "topo-tune", str(seconds), *argv)


def quoted(argv: tuple[str, ...]) -> str:
    """One line that a login shell splits back into exactly these arguments."""
    return shlex.join(argv)


def shown(command: Command) -> str:
    """A command as messages show it: a node program by its name, anything else as one short line."""
    program = program_of(command)
    line = program[0] if program is not None else quoted(command.argv)
    first = line.split("\n", 1)[0]
    return first if len(first) <= 80 and first == line else first[:77] + "..."
