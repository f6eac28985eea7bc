"""Slurm's topology.conf and topology.yaml, and what `scontrol show topology` prints.

Keys: https://slurm.schedmd.com/topology.conf.html, https://slurm.schedmd.com/topology.yaml.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricMap, FabricSwitch
from topo_tune.scan.documents import yaml_text
from topo_tune.scan.documents.name_lists import LINE_LIMIT, NameLists, numbered_lines
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, whole_number, without_escapes

_HINT = "`cat /etc/slurm/topology.conf` or `scontrol show topology` prints one"

# Without bounds a line of one long word would be looked through again from each of its characters.
_SETTING = re.compile(r"\b([A-Za-z]{1,40})[ \t]{0,8}=[ \t]{0,8}(\"[^\"]*\"|\S*)")
_REAL_NAME = re.compile(r"#[ \t]*([^\s=]{1,256})=(\S.{0,255})")
_SRUN_LABEL = re.compile(r"^[ \t]*\d{1,6}:[ \t]")
_CONF_LINE = re.compile(r"^[ \t]*(?:\d{1,6}:[ \t]+)?(?:SwitchName|BlockName)[ \t]*=", re.I | re.M)
_YAML_ENTRY = re.compile(r"^[ \t]*-[ \t]+topology[ \t]*:", re.M)
_YAML_SHAPE = re.compile(r"^[ \t]+(?:tree|block|flat|ring)[ \t]*:", re.M)

_SWITCHES_LIMIT = 1 << 14
"""With 32 nodes on each leaf, enough for half a million nodes."""

_SIZES_LIMIT = 64
"""Slurm itself takes 16 levels of blocks."""


def recognise(text: str) -> bool:
    """Whether a text is a topology.conf or a topology.yaml."""
    return _CONF_LINE.search(text) is not None or _is_yaml(text)


def parse(text: str, file: str | None = None) -> tuple[FabricMap, tuple[str, ...]]:
    """The switches or blocks, and what could not be read. Raises InputError where there are none."""
    plain = without_escapes(text)
    names = NameLists()
    if _CONF_LINE.search(plain) is None and _is_yaml(plain):
        found = _from_yaml(plain, file, names)
    else:
        found = _from_conf(plain, names)
    if not found.switches and found.form != "slurm flat":
        raise InputError("no switch and no block: expected lines of `SwitchName=`", file=file, hint=_HINT)
    return found, names.problems


def _is_yaml(text: str) -> bool:
    return _YAML_ENTRY.search(text) is not None and _YAML_SHAPE.search(text) is not None


def _from_conf(text: str, names: NameLists) -> FabricMap:
    switches: list[FabricSwitch] = []
    blocks: list[FabricSwitch] = []
    sizes: list[int] = []
    real_names: dict[str, str] = {}
    for number, line in _whole_lines(numbered_lines(text, names)):
        if line.startswith("#"):
            if (match := _REAL_NAME.match(line)) is not None:
                real_names[match.group(1)] = match.group(2).strip()
            continue
        if len(switches) + len(blocks) == _SWITCHES_LIMIT:
            names.problem(f"lines beyond the first {_SWITCHES_LIMIT} switches are left out", number)
            break
        given = {key.casefold(): value.strip('"') for key, value in _SETTING.findall(line)}
        if given.get("switchname"):
            switches.append(_switch(given, real_names, names, number))
        elif given.get("blockname"):
            blocks.append(_block(given, real_names, names, number))
        elif not given and line.strip():
            names.problem(f"`{clipped(line[:80])}` is not understood", number)
        sizes.extend(_sizes(given, names, number))
    if switches and blocks:
        names.problem("has both switches and blocks; the blocks are left out")
    if switches:
        return _map("slurm tree", switches, [])
    return _map("slurm block", blocks, list(dict.fromkeys(sizes)))


def _whole_lines(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines, those that end in a backslash joined to the next; comments whole."""
    held: list[str] = []
    start = 1
    for number, raw in lines:
        line = _SRUN_LABEL.sub("", raw).strip()
        if not held:
            start = number
            if line.startswith("#"):
                yield number, line
                continue
        line = line.split("#", 1)[0].rstrip()
        if line.endswith("\\"):
            held.append(line[:-1])
            continue
        yield start, "".join([*held, line])[:LINE_LIMIT]
        held = []
    if held:
        yield start, "".join(held)[:LINE_LIMIT]


def _switch(given: dict[str, str], real: dict[str, str], names: NameLists, line: int) -> FabricSwitch:
    name = clipped(given["switchname"], 256)
    # Names of switches are free text to Slurm.
    below = names.expand(given.get("switches", ""), line, of_nodes=False)
    # `scontrol show topology` lists at every level all nodes below; only a leaf's are its own.
    is_summary = bool(below) and given.get("level", "0") != "0"
    nodes = () if is_summary else names.expand(given.get("nodes", ""), line)
    return FabricSwitch(name=name, description=real.get(name), switches=below, nodes=nodes)


def _block(given: dict[str, str], real: dict[str, str], names: NameLists, line: int) -> FabricSwitch:
    name = clipped(given["blockname"], 256)
    nodes = names.expand(given.get("nodes", ""), line)
    return FabricSwitch(name=name, description=real.get(name), nodes=nodes)


def _sizes(given: dict[str, str], names: NameLists, line: int) -> tuple[int, ...]:
    # `scontrol show topology` says `BlockSize=` on the line of each block.
    written = given.get("blocksizes", given.get("blocksize", ""))
    sizes = [whole_number(word) for word in written.split(",")[:_SIZES_LIMIT] if word.strip()]
    if None in sizes:
        names.problem(f"`{clipped(written[:80])}` are not block sizes", line)
    return tuple(size for size in sizes if size is not None)


def _map(form: str, switches: list[FabricSwitch], sizes: list[int]) -> FabricMap:
    nodes = {node for switch in switches for node in switch.nodes}
    return FabricMap(form, tuple(switches), len(nodes), block_sizes=tuple(sizes[:_SIZES_LIMIT]))


# --- topology.yaml ------------------------------------------------------------------------------------------


def _from_yaml(text: str, file: str | None, names: NameLists) -> FabricMap:
    entries = [
        entry
        for document in yaml_text.read(text, file=file)
        for entry in (document if isinstance(document, list) else [document])
        if isinstance(entry, dict) and "topology" in entry
    ]
    if not entries:
        raise InputError("no `topology:` in it", file=file, hint=_HINT)
    # The one that partitions without a topology of their own get.
    chosen = next((entry for entry in entries if _is_true(entry.get("cluster_default"))), entries[0])
    if len(entries) > 1:
        others = ", ".join(clipped(str(e["topology"]), 40) for e in entries[:9] if e is not chosen)
        names.problem(f"holds {len(entries)} topologies; read is `{chosen['topology']}`, not {others}")
    return _yaml_map(chosen, names)


def _yaml_map(entry: dict[str, Any], names: NameLists) -> FabricMap:
    tree, block = entry.get("tree"), entry.get("block")
    if isinstance(tree, dict):
        switches = [_yaml_switch(item, names) for item in _mappings(tree.get("switches"))]
        return _map("slurm tree", switches, [])
    if isinstance(block, dict):
        blocks = [_yaml_switch(item, names) for item in _mappings(block.get("blocks"))]
        sizes = [whole_number(word) for word in _words(block.get("block_sizes"))]
        return _map("slurm block", blocks, [size for size in sizes if size is not None])
    return FabricMap("slurm flat" if "flat" in entry else "unknown", (), 0)


def _yaml_switch(item: dict[str, Any], names: NameLists) -> FabricSwitch:
    return FabricSwitch(
        name=clipped(str(item.get("switch", item.get("block", ""))), 256),
        switches=names.expand(",".join(_words(item.get("children"))), of_nodes=False),
        nodes=names.expand(",".join(_words(item.get("nodes")))),
    )


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _words(value: Any) -> list[str]:
    """A scalar, or a list of scalars, as texts."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _is_true(value: Any) -> bool:
    return isinstance(value, str) and value.casefold() in ("true", "yes", "on")


KINDS: tuple[SavedKind, ...] = (SavedKind("Slurm topology", recognise, document=parse),)
