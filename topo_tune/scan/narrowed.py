"""A scan with only some of its nodes. Pure."""

from __future__ import annotations

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.nodeset import expand, fold, is_node_name
from topo_tune.records.scan import Scan


def narrowed(scan: Scan, limit: str | None, exclude: str | None) -> Scan:
    """The scan with those nodes that are named, and without those that are excluded; what is no node's stays.

    limit, exclude: patterns like `gpu[001-004]`, or names as the scan has them. Raises InputError for a node that it
    does not have, or when none is left.
    """
    known = {node.node for node in scan.nodes} | {missing.node for missing in scan.missing}
    wanted = _named(limit, known) if limit else known
    left = wanted - (_named(exclude, known) if exclude else set())
    if (limit or exclude) and not left:
        raise InputError("no node is left", hint="check --limit and --exclude")
    return msgspec.structs.replace(
        scan,
        nodes=tuple(node for node in scan.nodes if node.node in left),
        missing=tuple(missing for missing in scan.missing if missing.node in left),
    )


def _named(pattern: str, known: set[str]) -> set[str]:
    # A folder's name may be none that a node can have: `rack1/gpu001`.
    words = {word.strip() for word in pattern.split(",")}
    names = words if words <= known else set(expand(pattern))
    unknown = sorted(names - known)
    if unknown:
        raise InputError(f"the saved files have no node `{unknown[0]}`", hint=f"they have {_shown(known)}")
    return names


def _shown(names: set[str]) -> str:
    plain = [name for name in names if is_node_name(name)]
    odd = sorted(names - set(plain))
    return ", ".join([*([fold(plain)] if plain else []), *odd]) or "none"
