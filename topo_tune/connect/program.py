"""Programs that travel: a module of `on_node/` is sent over standard input and run by the node's own Python.

Nothing is installed and nothing is left behind. The interpreter is started with a one-line loader that reads
a bundle of module sources from standard input, makes ordinary modules of them, and calls the last one's
`main(stdin)`; the rest of standard input is the program's own. Answers are lines behind a marker, so that
whatever a login script prints before them is told apart.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from topo_tune.connect.interface import Command, Connection, Output
from topo_tune.errors import NodeProgramFailed

MARKER = "@topo-tune@ "
"""Begins every line that a node program means for topo-tune; `on_node` modules print it."""

# Unbuffered on purpose: what stands behind the bundle must stay in the pipe, so that a program can wait for
# it with select() instead of finding it gone into a buffer.
_LOADER = (
    "import sys,json,types\n"
    "i=open(0,'rb',buffering=0,closefd=False);n=int(sys.argv[1]);d=b''\n"
    "while len(d)<n:\n"
    " c=i.read(n-len(d))\n"
    " if not c: sys.exit('the program ended in the middle')\n"
    " d+=c\n"
    "P='topo_tune';Q=P+'.on_node'\n"
    "for n in (P,Q): sys.modules[n]=types.ModuleType(n)\n"
    "for n,s in json.loads(d):\n"
    " m=types.ModuleType(Q+'.'+n);sys.modules[Q+'.'+n]=m;setattr(sys.modules[Q],n,m)\n"
    " exec(compile(s,'<topo-tune '+n+'>','exec'),m.__dict__)\n"
    "sys.exit(m.main(i))\n"
)

# Modules that a program imports from its siblings, in the order they must exist.
_NEEDS = {
    "collector": ("nccl_conf", "probes", "gather", "shared_libraries", "nccl_libraries"),
    "writer": ("nccl_conf",),
    "bench_agent": (
        *("nccl_conf", "nccl_api", "data_types", "collectives", "known_data", "known_bytes"),
        *("marks", "environment", "meeting", "nccl_rank", "gloo_rank", "overlap", "bench_rank", "trial"),
    ),
}


def bundle(program: str) -> bytes:
    """The sources of a node program and of the siblings it imports, as the loader reads them."""
    folder = resources.files("topo_tune.on_node")
    names = (*_NEEDS.get(program, ()), program)
    return json.dumps(
        [[name, (folder / f"{name}.py").read_text(encoding="utf-8")] for name in names]
    ).encode()


def program_command(
    python: tuple[str, ...],
    program: str,
    payload: bytes = b"",
    *,
    deadline_seconds: float,
    become: bool = False,
) -> Command:
    """The command that runs a node program; `payload` is what it finds on its standard input."""
    source = bundle(program)
    return Command(
        argv=(*python, "-c", _LOADER, str(len(source))),
        stdin=source + payload,
        deadline_seconds=deadline_seconds,
        become=become,
    )


def program_of(command: Command) -> tuple[str, bytes] | None:
    """Which node program a command runs, and with which payload; None for any other command."""
    if len(command.argv) < 2 or command.argv[-2] != _LOADER:
        return None
    size = int(command.argv[-1])
    modules = json.loads(command.stdin[:size])
    return str(modules[-1][0]), command.stdin[size:]


def run_program(
    connection: Connection,
    program: str,
    request: dict[str, Any],
    *,
    deadline_seconds: float,
    become: bool = False,
) -> dict[str, Any]:
    """Run a node program to its end and give its answer, a JSON object.

    Raises HostError; NodeProgramFailed when it exits without an answer, or answers `{"error": ...}`.
    """
    command = program_command(
        connection.node.python,
        program,
        json.dumps(request).encode(),
        deadline_seconds=deadline_seconds,
        become=become,
    )
    output = connection.run(command)
    answer = find_answer(output.stdout)
    if answer is None:
        raise _no_answer(connection, program, output)
    if "error" in answer:
        raise NodeProgramFailed(
            connection.node.name, str(answer["error"]), command=program, status=output.status
        )
    return answer


def find_answer(stdout: bytes) -> dict[str, Any] | None:
    """The last marked line of a program's output as an object, or None."""
    for line in reversed(stdout.decode("utf-8", "replace").splitlines()):
        answer = parse_line(line)
        if answer is not None:
            return answer
    return None


def parse_line(line: str) -> dict[str, Any] | None:
    """A marked line as an object; None for any other line."""
    if not line.startswith(MARKER):
        return None
    try:
        answer = json.loads(line[len(MARKER) :])
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _no_answer(connection: Connection, program: str, output: Output) -> NodeProgramFailed:
    tail = output.stderr.decode("utf-8", "replace").strip()[-2000:]
    python = " ".join(connection.node.python)
    last_line = tail.splitlines()[-1] if tail else "it wrote nothing to standard error"
    return NodeProgramFailed(
        connection.node.name,
        f"`{python}` ended with status {output.status} and no answer: {last_line}",
        command=program,
        status=output.status,
        stderr_tail=tail,
        hint="the cluster file's `python:` must name a Python 3.8 or newer on the node",
    )
