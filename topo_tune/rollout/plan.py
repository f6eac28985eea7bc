"""Decide everything before anything is done: what files become, who changes with whom, what forbids it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topo_tune.errors import MissingCapability, Refused
from topo_tune.records.catalogue import catalogue
from topo_tune.records.inventory import BackendName, Inventory, Missing
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.nodeset import fold
from topo_tune.records.rollout import NodePlan, RolloutPlan, Wave
from topo_tune.rollout.requests import node_plan

# The fewest nodes whose launch has a network in it.
_NODES_FOR_A_NETWORK = 2


def plan_rollout(
    inventory: Inventory,
    env: NcclEnv,
    backend: BackendName,
    node_answers: Mapping[str, Mapping[str, Any]],
    missing: Sequence[Missing],
    *,
    canary: int = 2,
    confined: bool = False,
    edge: float = -0.03,
    notes: Sequence[str] = (),
) -> RolloutPlan:
    """The plan for every node that answered.

    `node_answers`: by node, the writer's answer to `plan_request`. `missing`: every other node.

    Waves: `canary` nodes of the first rack, the rest of that rack, then rack by rack. `confined`: every rack
    is one wave, because jobs do not span racks and so a rack is the smallest part that may change by itself.
    `edge` is the lowest change of throughput that still passes. Nodes that have the setting already are in no
    wave.

    Raises Refused for nothing to write and, where ranks must agree, for a wave that would be measured on one
    node without a network, or a confined rack that would change without its missing nodes; MissingCapability
    when no node answered, NodeProgramFailed for an answer that is none.
    """
    if not env.settings:
        raise Refused("there is nothing to roll out: the setting is NCCL's defaults")
    plans = _node_plans(inventory, node_answers, missing)
    must_match = keys_that_must_match(env)
    waves = _waves(inventory, plans, canary=canary, confined=confined, must_match=bool(must_match))
    if must_match:
        _check_waves(inventory, waves, missing, must_match, confined=confined)
    return RolloutPlan(
        cluster=inventory.name,
        env=env,
        backend=backend,
        nodes=plans,
        waves=waves,
        missing=tuple(missing),
        must_match=must_match,
        edge=edge,
        confined=confined,
        notes=(*notes, *_notes(plans, waves, missing, must_match, inventory.as_nodes)),
    )


def keys_that_must_match(env: NcclEnv) -> tuple[str, ...]:
    """The names that may hang a job whose ranks differ in them; one of which nobody knows is counted in."""
    known = catalogue()
    return tuple(
        name for name in env.names() if name not in known or known[name].must_match_across_ranks is not False
    )


def check_conflicts(plan: RolloutPlan) -> None:
    """Refuse a plan whose names somebody else sets as well: it would have no effect, or undo theirs.

    Raises Refused, with who and where on which nodes.
    """
    nodes_of = _nodes_by_text((conflict, node.node) for node in plan.nodes for conflict in node.conflicts)
    if nodes_of:
        lines = [f"{fold(nodes)}: {conflict}" for conflict, nodes in nodes_of.items()]
        raise Refused(
            "somebody else sets what this rollout would set:\n  " + "\n  ".join(lines),
            hint="take those lines out, or leave those names out of the rollout, and plan again",
        )


def check_agreement(plan: RolloutPlan, *, drained: bool, confined: bool) -> None:
    """Refuse a rollout that could leave a running job with ranks that disagree.

    `drained`: no jobs run on these nodes. `confined`: every job stays inside one rack. Raises Refused, naming
    the keys that force the choice.
    """
    is_alone = len(plan.nodes) + len(plan.missing) < _NODES_FOR_A_NETWORK
    if not plan.must_match or is_alone:
        return
    keys = _names(plan.must_match)
    if plan.missing and not plan.confined:
        # Drained nodes take jobs again afterwards, and those would span what changed and what did not.
        raise _left_out([entry.node for entry in plan.missing], keys)
    if drained or (confined and plan.confined):
        return
    raise Refused(
        f"a job that spans changed and unchanged nodes can hang: its ranks must agree on {keys}, "
        "and this rollout changes node after node",
        hint="give `--drained` when no job runs on these nodes until the rollout has ended, "
        "or `--confined` when no job spans racks (then each rack changes as a whole)",
    )


def _check_waves(
    inventory: Inventory,
    waves: Sequence[Wave],
    missing: Sequence[Missing],
    must_match: Sequence[str],
    *,
    confined: bool,
) -> None:
    racks = {inventory.node(entry.node).rack for entry in missing}
    changing = {wave.rack for wave in waves}
    left_out = [entry.node for entry in missing if inventory.node(entry.node).rack in changing]
    if confined and left_out:
        raise _left_out(left_out, _names(must_match))
    # The launches that would judge such a wave have no other rank on the network to agree with. (Where nodes
    # of its rack are missing, `check_agreement` names those instead.)
    alone = [
        wave
        for wave in waves
        if len(wave.measured) * inventory.as_nodes < _NODES_FOR_A_NETWORK and wave.rack not in racks
    ]
    if alone and len(inventory.nodes()) >= _NODES_FOR_A_NETWORK:
        nodes = fold(node for wave in alone for node in wave.measured)
        raise Refused(
            f"{nodes} would be measured alone, without the network, which neither proves nor judges "
            f"{_names(must_match)}: ranks must agree on it, so no other node may be in that launch",
            hint="join such nodes with others in one rack of the cluster file, or choose another `--canary`, "
            "so that at least two nodes change together",
        )


def _left_out(nodes: Sequence[str], keys: str) -> Refused:
    return Refused(
        f"{fold(nodes)} would be left out: a job that spans it and changed nodes can hang, because its ranks "
        f"must agree on {keys}",
        hint="make every node reachable, or take those nodes out of the cluster file when no job runs on them "
        "together with the others",
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _node_plans(
    inventory: Inventory, node_answers: Mapping[str, Mapping[str, Any]], missing: Sequence[Missing]
) -> tuple[NodePlan, ...]:
    absent = {entry.node for entry in missing}
    plans = tuple(
        node_plan(node.name, node.rack, node_answers[node.name])
        for node in inventory.nodes()
        if node.name not in absent
    )
    if not plans:
        raise MissingCapability(
            f"none of {inventory.describe()} answered, so there is nothing to plan",
            hint="; ".join(f"{entry.node}: {entry.reason}" for entry in missing[:3]) or None,
        )
    return plans


def _waves(
    inventory: Inventory, plans: Sequence[NodePlan], *, canary: int, confined: bool, must_match: bool
) -> tuple[Wave, ...]:
    waves: list[Wave] = []
    for rack in inventory.racks:
        settled = tuple(plan.node for plan in plans if plan.rack == rack.name and not plan.is_change)
        changing = tuple(plan.node for plan in plans if plan.rack == rack.name and plan.is_change)
        for name, nodes in _parts(rack.name, changing, 0 if waves or confined else canary, must_match):
            waves.append(Wave(name, rack.name, nodes, nodes if must_match else _measured(nodes, settled)))
            settled += nodes
    return tuple(waves)


def _parts(
    rack: str, changing: tuple[str, ...], canary: int, must_match: bool
) -> list[tuple[str, tuple[str, ...]]]:
    # A rest of one node would be measured with the canaries, which have the new setting by then. Ranks that
    # must agree could hang in that launch, so then the last node is a canary too.
    smallest_rest = _NODES_FOR_A_NETWORK if must_match else 1
    if not changing or canary < 1 or len(changing) - canary < smallest_rest:
        return [(rack, changing)] if changing else []
    return [(f"{rack}/canary", changing[:canary]), (rack, changing[canary:])]


def _measured(nodes: tuple[str, ...], settled: tuple[str, ...]) -> tuple[str, ...]:
    return nodes if len(nodes) >= _NODES_FOR_A_NETWORK else nodes + settled


def _notes(
    plans: Sequence[NodePlan],
    waves: Sequence[Wave],
    missing: Sequence[Missing],
    must_match: Sequence[str],
    as_nodes: int,
) -> list[str]:
    notes = [
        f"{fold(nodes)}: {note}"
        for note, nodes in _nodes_by_text((note, plan.node) for plan in plans for note in plan.notes).items()
    ]
    already = [plan.node for plan in plans if not plan.is_change]
    if already:
        notes.append(f"{fold(already)}: nothing to write, the files are as wanted")
    alone = [wave.name for wave in waves if len(wave.measured) * as_nodes < _NODES_FOR_A_NETWORK]
    if alone:
        notes.append(f"measured on one node, so without the network: {', '.join(alone)}")
    # A node whose writer refused to plan (damaged markers, no plain file) is among the missing too.
    risk = "; a job that spans it and changed nodes can hang" if must_match else ""
    notes += [
        f"{fold(nodes)}: left out, keeps what it has: {reason}{risk}"
        for reason, nodes in _nodes_by_text((entry.reason, entry.node) for entry in missing).items()
    ]
    return notes


def _nodes_by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, node in pairs:
        found.setdefault(text, []).append(node)
    return found
