"""What NVIDIA topograph reads and writes besides a plain topology.conf.

Its model files, the ConfigMap that it keeps a Slurm topology in, and Kubernetes nodes with its labels
(`kubectl get nodes -o json`): NVIDIA/topograph: docs/modeling.md, docs/engines/k8s.md, docs/engines/slinky.md
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricMap, FabricSwitch
from topo_tune.scan.documents import slurm_topology, yaml_text
from topo_tune.scan.documents.name_lists import NAMES_LIMIT, NameLists
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_TIERS = (
    # By version of topograph, the tier next to the nodes first.
    tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(8)),
    tuple(f"network.topology.nvidia.com/{tier}" for tier in ("leaf", "spine", "core")),
    tuple(f"network.topology.kubernetes.io/{tier}" for tier in ("block", "spine", "datacenter")),
)
_DOMAINS = (
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "network.topology.kubernetes.io/accelerator",
    "nvidia.com/gpu.clique",
)

_LABELS = re.compile(
    r"(?:fabric|accelerator)\.topograph\.run/(?:tier-\d|domain)"
    r"|network\.topology\.(?:nvidia\.com|kubernetes\.io)/(?:accelerator|leaf|block|spine|core)"
)
_KUBERNETES_NODES = re.compile(r"^[ \t\"{-]*kind\"?[ \t]*:[ \t]*\"?(?:Node|NodeList|List)\b", re.M)
_CONFIG_MAP = re.compile(r"^[ \t\"{-]*kind\"?[ \t]*:[ \t]*\"?ConfigMap\b", re.M)
_SLURM_TEXT = re.compile(r"(?:SwitchName|BlockName)=|-[ \t]+topology:")
_MODEL = re.compile(r"^switches[ \t]*:[ \t]*$", re.M)
_MODEL_PART = re.compile(
    r"^[ \t]+(?:-[ \t]+)?(?:switches|nodes|capacity_blocks)[ \t]*:|^capacity_blocks[ \t]*:", re.M
)


def recognise(text: str) -> bool:
    """Whether a text is one of the three."""
    return _is_model(text) or _is_config_map(text) or _is_nodes(text)


def parse(text: str, file: str | None = None) -> tuple[FabricMap, tuple[str, ...]]:
    """Switches, nodes and NVLink domains. Raises InputError where there are none."""
    plain = without_escapes(text)
    if _is_config_map(plain):
        return _from_config_map(_values(plain, file), file)
    names = NameLists()
    if _is_model(plain):
        found = _from_model(_values(plain, file), names)
    else:
        found = _from_nodes(_objects(_values(plain, file), file), names)
    if not found.switches and not found.domains:
        raise InputError(
            "no switch and no NVLink domain in it",
            file=file,
            hint="`kubectl get nodes -o json` prints topograph's labels",
        )
    return found, names.problems


def _is_model(text: str) -> bool:
    return _MODEL.search(text) is not None and _MODEL_PART.search(text) is not None


def _is_config_map(text: str) -> bool:
    return _CONFIG_MAP.search(text) is not None and _SLURM_TEXT.search(text) is not None


def _is_nodes(text: str) -> bool:
    return _KUBERNETES_NODES.search(text) is not None and _LABELS.search(text) is not None


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class _Item(msgspec.Struct):
    metadata: _Metadata = _Metadata()


class _Object(msgspec.Struct):
    """A Kubernetes object, as far as it is read here; kubectl's lists hold more of them."""

    metadata: _Metadata = _Metadata()
    items: list[_Item] = []
    data: dict[str, str] = {}


_OBJECT = msgspec.json.Decoder(_Object)


def _values(text: str, file: str | None) -> list[Any]:
    """The documents of a JSON or YAML text: JSON as a Kubernetes object, YAML as plain values."""
    if not text.lstrip().startswith("{"):
        return list(yaml_text.read(text, file=file))
    try:
        return [_OBJECT.decode(text.encode("utf-8", "replace"))]
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InputError(f"cannot be read as JSON: {clipped(str(exc), 120)}", file=file) from exc


def _objects(values: list[Any], file: str | None) -> list[_Object]:
    try:
        return [v if isinstance(v, _Object) else msgspec.convert(v, _Object) for v in values if v != ""]
    except (msgspec.ValidationError, RecursionError) as exc:
        raise InputError(f"is no Kubernetes object: {clipped(str(exc), 120)}", file=file) from exc


# --- a ConfigMap with a Slurm topology ----------------------------------------------------------------------


def _from_config_map(values: list[Any], file: str | None) -> tuple[FabricMap, tuple[str, ...]]:
    texts = [text for item in _objects(values, file) for text in item.data.values()]
    chosen = next((text for text in texts if slurm_topology.recognise(text)), None)
    if chosen is None:
        raise InputError("a ConfigMap without a Slurm topology in its data", file=file)
    return slurm_topology.parse(chosen, file)


# --- nodes with labels --------------------------------------------------------------------------------------


def _from_nodes(objects: list[_Object], names: NameLists) -> FabricMap:
    nodes: list[_Metadata] = []
    for item in objects:
        nodes.extend([entry.metadata for entry in item.items] if item.items else [item.metadata])
    below: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    domains: dict[str, dict[str, None]] = {}
    labelled: set[str] = set()
    for node in nodes[:NAMES_LIMIT]:
        path = next((p for tier in _TIERS if (p := [v for key in tier if (v := node.labels.get(key))])), [])
        for position, switch in enumerate(path):
            switches, ends = below.setdefault(switch, ({}, {}))
            if position == 0:
                ends[node.name] = None
            else:
                switches[path[position - 1]] = None
        if (domain := next((v for key in _DOMAINS if (v := node.labels.get(key))), None)) is not None:
            domains.setdefault(domain, {})[node.name] = None
        if path or domain is not None:
            labelled.add(node.name)
        else:
            names.problem(f"`{clipped(node.name)}` has none of topograph's labels")
    return FabricMap(
        "topograph",
        tuple(FabricSwitch(name, switches=tuple(s), nodes=tuple(n)) for name, (s, n) in below.items()),
        len(labelled),
        domains=tuple((name, tuple(members)) for name, members in domains.items()),
    )


# --- a model ------------------------------------------------------------------------------------------------


def _from_model(values: list[Any], names: NameLists) -> FabricMap:
    model = next((value for value in values if isinstance(value, dict) and "switches" in value), {})
    blocks = dict(_named(model.get("capacity_blocks")))
    members = {name: _names(body.get("nodes"), names) for name, body in blocks.items()}
    domains: dict[str, dict[str, None]] = {}
    for name, body in blocks.items():
        domains.setdefault(_domain(body) or name, {}).update(dict.fromkeys(members[name]))
    for name, body in _named(model.get("nodes")):
        domain = _domain(body) or body.get("capacity_block")
        if isinstance(domain, str):
            domains.setdefault(domain, {})[name] = None
    switches = tuple(
        _model_switch(name, body, members, names) for name, body in _named(model.get("switches"))
    )
    ends = {node for switch in switches for node in switch.nodes}
    ends.update(node for domain in domains.values() for node in domain)
    listed = tuple((domain, tuple(nodes)) for domain, nodes in domains.items() if nodes)
    return FabricMap("topograph", switches, len(ends), domains=listed)


def _model_switch(
    name: str, body: dict[str, Any], members: dict[str, tuple[str, ...]], names: NameLists
) -> FabricSwitch:
    # Older models hang capacity blocks from switches, newer ones nodes.
    blocks = _texts(body.get("capacity_blocks"))
    nodes = [
        *_names(body.get("nodes"), names),
        *(node for block in blocks for node in members.get(block, ())),
    ]
    below = names.expand(",".join(_texts(body.get("switches"))), of_nodes=False)
    return FabricSwitch(name, switches=below, nodes=tuple(dict.fromkeys(nodes)))


def _named(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Entries of a mapping by name, or of a list whose items have `name:`."""
    if isinstance(value, dict):
        return [(clipped(key, 256), body if isinstance(body, dict) else {}) for key, body in value.items()]
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return [(clipped(str(item.get("name", "")), 256), item) for item in items]


def _domain(body: dict[str, Any]) -> str | None:
    """The NVLink domain of a node or block, where it says one."""
    attributes = body.get("attributes")
    value = attributes.get("nvlink") if isinstance(attributes, dict) else body.get("nvlink")
    return clipped(value, 256) if isinstance(value, str) and value else None


def _names(value: Any, names: NameLists) -> tuple[str, ...]:
    return names.expand(",".join(_texts(value)))


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


KINDS: tuple[SavedKind, ...] = (SavedKind("topograph topology", recognise, document=parse),)
