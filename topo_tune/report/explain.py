"""Names of variables explained for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from topo_tune.lint.explanation import Explanation, Kind
from topo_tune.records.catalogue import Value, Variable, catalogue_version, version_tuple
from topo_tune.report.text import listed

OLDEST_TAG = "2.3.5"
"""The first release that the catalogue's author looked at: what it held may be older."""

_SCOPES = {
    "intra_node": "traffic within a node",
    "inter_node_socket": "traffic between nodes over sockets",
    "inter_node_ib": "traffic between nodes over InfiniBand or RoCE",
    "both": "traffic within a node and between nodes",
    "none": "no traffic",
}
_TYPES = {
    "int": "a whole number",
    "bool": "0 or 1",
    "enum": "one of a few values",
    "list": "a list",
    "string": "a text",
    "path": "a path",
    "size": "a whole number of bytes",
}
_READ = {
    "process": "once, at its first use in a process",
    "comm_init": "again for each communicator",
}
_RISKS = {
    "ignored": "is ignored",
    "slow": "costs speed",
    "warning": "is warned of and replaced",
    "error": "ends the job with an error",
    "hang": "can make the job hang",
    "crash": "can crash the job",
    "corruption": "can make results wrong",
}
_KINDS = {
    Kind.PLUGIN: "not NCCL's",
    Kind.FRAMEWORK: "not NCCL's",
    Kind.MISNOMER: "not NCCL's",
    Kind.UNDESCRIBED: "NCCL's",
    Kind.UNKNOWN: "unknown",
}


def explained(explanations: Iterable[Explanation]) -> list[RenderableType]:
    """A block for each name."""
    return [listed(_title(found), _rows(found)) for found in explanations]


def variables_list(group: str, variables: Iterable[Variable]) -> RenderableType:
    """The names of a group, each with what it does."""
    return listed(f"{group}:", ((variable.name, _first_sentence(variable)) for variable in variables))


def _title(found: Explanation) -> str:
    if found.variable is None:
        return f"{found.name} ({_KINDS[found.kind]})"
    state = "" if found.variable.until is None else ", no longer read"
    return f"{found.name} ({found.variable.group}{state})"


def _rows(found: Explanation) -> Iterator[tuple[str, str]]:
    yield "what", found.text
    if found.variable is not None and found.variable.notes != found.text:
        yield "to know", found.variable.notes
    if found.use:
        yield ("nearest" if found.kind is Kind.UNKNOWN else "use"), found.use
    if found.kind is Kind.UNKNOWN:
        yield "next", _next_step(found)
    if found.variable is not None:
        yield from _of_gone(found.variable) if found.variable.until else _of_variable(found.variable)
    if found.debugging_only:
        yield "NVIDIA says", "for debugging and experiments; not for production"
    is_nccl = found.kind is Kind.VARIABLE
    if found.source and not (found.variable is not None and found.variable.until):
        yield "source", f"NVIDIA/nccl {catalogue_version()}: {found.source}" if is_nccl else found.source


def _of_variable(variable: Variable) -> Iterator[tuple[str, str]]:
    yield "takes", _takes(variable)
    if variable.default is not None:
        yield "default", str(variable.default)
    yield "versions", _versions(variable)
    if variable.read_when is not None:
        yield "read", _read(variable)
    if variable.config_field:
        yield "in a program", f"ncclConfig_t.{variable.config_field}; the environment beats it"
    yield "acts on", _SCOPES.get(variable.scope, variable.scope)
    yield "across ranks", _across_ranks(variable)
    if variable.risk:
        yield "a bad value", _RISKS.get(variable.risk, variable.risk)
    yield "documented", "in NVIDIA's guide" if variable.documented else "no; known from the source"
    yield "in a search", _search(variable)


def _of_gone(variable: Variable) -> Iterator[tuple[str, str]]:
    yield "versions", _versions(variable)
    yield "a setting", "has no effect in later versions"


def _takes(variable: Variable) -> str:
    kind = _TYPES.get(variable.type, variable.type)
    if variable.allowed is None:
        return kind
    if variable.type == "bool" and variable.allowed == (0, 1):
        return kind
    return f"{kind}: {_joined(variable.allowed) if isinstance(variable.allowed, tuple) else variable.allowed}"


def _versions(variable: Variable) -> str:
    if variable.since is None:
        since = f"since {variable.first_tag or OLDEST_TAG} or earlier"
    else:
        since = f"since {variable.since}"
        if variable.first_tag and version_tuple(variable.first_tag) > version_tuple(OLDEST_TAG):
            since += f", first release with it {variable.first_tag}"
    return f"{since}, last read by {variable.until}" if variable.until else since


def _read(variable: Variable) -> str:
    text = _READ.get(variable.read_when or "", variable.read_when or "")
    return f"{text}; with NCCL_NO_CACHE at each use" if variable.no_cache_reload else text


def _across_ranks(variable: Variable) -> str:
    if variable.must_match_across_ranks is None:
        return "not known whether it may differ"
    text = "must be the same" if variable.must_match_across_ranks else "may differ"
    basis = {"source": "read in NCCL's source", "inferred": "inferred from NCCL's source"}
    return (
        f"{text} ({basis.get(variable.match_basis, variable.match_basis)})" if variable.match_basis else text
    )


def _search(variable: Variable) -> str:
    values = ", ".join(str(value) for value in variable.search_values or ())
    if not variable.tunable:
        return "not tried" + (f"; values worth a try: {values}" if values else "")
    return f"tried: {values}" if values else "may be tried; no values are listed"


def _joined(values: Iterable[Value]) -> str:
    return ", ".join(str(value) for value in values)


def _next_step(found: Explanation) -> str:
    if found.use:
        return f"`topo-tune explain {found.use}`, if that is the one"
    return (
        "`topo-tune explain --list` names all that NCCL reads; "
        "`topo-tune lint FILE --library libnccl.so.2` looks a name up in a library of your own"
    )


def _first_sentence(variable: Variable) -> str:
    if variable.purpose:
        return variable.purpose
    return variable.notes.split(". ")[0].split("; ")[0].rstrip(".")
