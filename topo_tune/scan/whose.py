"""Which node a saved file belongs to, told by its folder, by its name, and by what lies beside it.

People send dumps in these shapes: a folder for each node, at any depth; one folder of one node's files, each of another
tool, some of them in folders of their own (`etc`, `logs`); one folder of many nodes' files, with the node's name in
front of or behind the tool's (`gpu001-ibstat.txt`); and a folder for each tool, with a file for each node in it.

What decides is that a node has one output of each tool: files that say the same of two machines are of two nodes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import msgspec

from topo_tune.scan.facts.nccl import job_settings
from topo_tune.scan.file_names import (
    are_nodes,
    has_number,
    in_order,
    is_of,
    is_part,
    shape,
    stem,
    words,
)
from topo_tune.scan.saved_file import SavedFile

_DEPTH_LIMIT = 32
"""Folders inside of each other; what lies deeper counts as lying there."""

Path = tuple[str, ...]


class Sorted(msgspec.Struct):
    """Files by node, and what is no node's."""

    nodes: dict[str, list[SavedFile]]
    others: list[SavedFile]
    """files of which nothing could be read and that no node's folder or name claims"""


class _Node(msgspec.Struct):
    """Files of one node, or of a job."""

    name: str
    place: Path
    """its folder, or where a folder of its name would lie"""
    files: list[SavedFile]


class _Folder(msgspec.Struct):
    """A folder with the files in it of which something could be read."""

    name: str | None
    """None: no folder, but files that were named one by one"""
    place: Path
    files: list[SavedFile]
    folders: dict[str, _Folder]

    def below(self) -> Iterator[SavedFile]:
        """Every file, in the folder and further down."""
        yield from self.files
        for folder in self.folders.values():
            yield from folder.below()


def by_node(files: list[SavedFile], *, folder: str | None) -> Sorted:
    """Name of the node to its files, in order of names.

    folder: the name of the folder they lie in; None where they were named one by one.
    """
    nodes = _named(list(_nodes_in(_tree(files, folder), is_top=True)))
    found: dict[str, list[SavedFile]] = {name: node.files for name, node in nodes.items()}
    for file in files:
        if file.node is not None:
            found.setdefault(file.node, []).append(file)
    homes = {node.place: name for name, node in nodes.items()}
    others: list[SavedFile] = []
    for file in files:
        if file.node is None and not file.outputs:
            owner = _owner(file, homes, found)
            (others if owner is None else found[owner]).append(file)
    return Sorted(dict(sorted(found.items(), key=lambda item: in_order(item[0]))), others)


def lost_node(folders: Path, nodes: Iterable[str]) -> str | None:
    """The first of some folders that is called like the nodes, and so was meant to be one."""
    shapes = {shape(node) for node in nodes if has_number(node)}
    return next((name for name in folders if shape(name) in shapes), None)


def _owner(file: SavedFile, homes: dict[Path, str], nodes: dict[str, list[SavedFile]]) -> str | None:
    """The node in whose folder a file lies, or whose name is in the file's."""
    folders = _place(file)
    for depth in range(len(folders), -1, -1):
        if folders[:depth] in homes:
            return homes[folders[:depth]]
    return _by_own_name(stem(file.name), nodes)


def _by_own_name(name: str, nodes: Iterable[str]) -> str | None:
    """The node whose name a file's name begins or ends with; the longest, where one node's name is in another's."""
    return max((node for node in nodes if is_of(name, node)), key=len, default=None)


def _tree(files: list[SavedFile], name: str | None) -> _Folder:
    top = _Folder(name, (), [], {})
    for file in files:
        if file.node is not None or not file.outputs:
            continue
        folder = top
        for part in _place(file):
            folder = folder.folders.setdefault(part, _Folder(part, (*folder.place, part), [], {}))
        folder.files.append(file)
    return top


def _place(file: SavedFile) -> Path:
    return PurePath(file.name).parts[:-1][:_DEPTH_LIMIT]


def _named(nodes: list[_Node]) -> dict[str, _Node]:
    """Each under its own name; where two folders hold a node of the same name, under its whole place."""
    places = {node.place: node.name for node in nodes}
    times = Counter(places.values())
    named: dict[str, _Node] = {}
    for node in nodes:
        name = node.name if times[node.name] == 1 else "/".join(node.place) or node.name
        if name in named:
            named[name].files.extend(node.files)
        else:
            named[name] = node
    return named


# --- folders ---


def _nodes_in(folder: _Folder, *, is_top: bool = False) -> Iterator[_Node]:
    parts, others = _parts_and_others(folder)
    if not folder.files and not parts and len(others) == 1:
        # a wrapped dump: what matters lies further down
        yield from _nodes_in(others[0])
    elif _is_by_tool([*parts, *others]):
        yield from _by_stem([*parts, *others])
        yield from _beside_each_other(folder, is_top)
    elif others:
        yield from _beside_each_other(folder, is_top)
        for inner in [*parts, *others]:
            yield from _nodes_in(inner)
    elif parts and _is_one_node(_describing(folder.below())):
        yield _Node(folder.name or "", folder.place, list(folder.below()))
    else:
        yield from _beside_each_other(folder, is_top)
        for inner in parts:
            yield from _nodes_in(inner)


def _parts_and_others(folder: _Folder) -> tuple[list[_Folder], list[_Folder]]:
    """Folders that hold a part of the node that this folder is, and all others."""
    parts: list[_Folder] = []
    others: list[_Folder] = []
    for inner in folder.folders.values():
        (parts if _is_part(inner) else others).append(inner)
    holds_node = any(True for _ in _describing(itertools.chain(folder.files, *(p.below() for p in parts))))
    may_be_parts = holds_node and not any(has_number(other.name or "") for other in others)
    if others and may_be_parts and _is_one_node(_describing(folder.below())):
        return [*parts, *others], []
    return parts, others


def _is_part(folder: _Folder) -> bool:
    return is_part(folder.name or "") and all(_is_part(inner) for inner in folder.folders.values())


def _is_by_tool(folders: list[_Folder]) -> bool:
    """Whether each folder is of one tool, and holds a file for each node, called like it."""
    if len(folders) < 2 or any(folder.folders for folder in folders):
        return False
    if all(_is_one_node(_describing(folder.files)) for folder in folders):
        return False
    stems = Counter(name for folder in folders for name in {stem(file.name) for file in folder.files})
    return max(stems.values()) > 1 and all(
        _is_one_node(_describing(node.files)) for node in _by_stem(folders)
    )


def _by_stem(folders: list[_Folder]) -> list[_Node]:
    nodes: dict[str, list[SavedFile]] = defaultdict(list)
    for file in (file for folder in folders for file in folder.files):
        nodes[stem(file.name)].append(file)
    return [_Node(name, (name,), files) for name, files in nodes.items()]


# --- files beside each other ---


def _beside_each_other(folder: _Folder, is_top: bool) -> list[_Node]:
    """The folder as one node, or its files sorted by their names."""
    describing = list(_describing(folder.files))
    if not folder.files:
        return []
    groups = _by_words(describing) or _by_name(describing)
    if _is_folders_own(folder, describing, list(groups), is_top):
        return [_Node(folder.name or "", folder.place, folder.files)]
    sorted_already = {file.name for file in describing}
    nodes = list(groups)
    for file in folder.files:
        if file.name not in sorted_already:
            name = stem(file.name)
            owner = _by_own_name(name, nodes) if _is_of_job(file) else None
            groups.setdefault(owner or name, []).append(file)
    return [_Node(name, (*folder.place, name), files) for name, files in groups.items()]


def _is_folders_own(folder: _Folder, describing: list[SavedFile], names: list[str], is_top: bool) -> bool:
    """Whether the files are of one node that is called like their folder."""
    if folder.name is None:
        return False
    if not is_top:
        # Inside of another folder a name like a node's is one; several outputs of one tool may be of one node.
        return not are_nodes(names)
    return len(describing) > 1 and len(_slots(describing)) > 1 and _is_one_node(describing)


def _by_words(files: list[SavedFile]) -> dict[str, list[SavedFile]]:
    """Files whose names begin or end with the same words, with as few words as possible; empty where none do."""
    names = {file.name: words(stem(file.name)) for file in files}
    most = max((len(own) for own in names.values()), default=0)
    for from_front, count in itertools.product((True, False), range(1, most)):
        groups: dict[tuple[str, ...], list[SavedFile]] = defaultdict(list)
        for file in files:
            own = names[file.name]
            groups[tuple(own[:count] if from_front else own[-count:])].append(file)
        if len(groups) < len(files) and all(_is_one_node(own) for own in groups.values()):
            named = {_common([stem(file.name) for file in own], from_front): own for own in groups.values()}
            # Separators that differ can leave two groups with the same words in common.
            return named if len(named) == len(groups) else {"-".join(key): own for key, own in groups.items()}
    return {}


def _by_name(files: list[SavedFile]) -> dict[str, list[SavedFile]]:
    groups: dict[str, list[SavedFile]] = defaultdict(list)
    for file in files:
        groups[stem(file.name)].append(file)
    return groups


def _common(stems: list[str], from_front: bool) -> str:
    """`gpu-001` of `gpu-001-topo` and `gpu-001-ibstat`; from the back it is read from the back. One is itself."""
    if len(stems) == 1:
        return stems[0]
    parts = [re.findall(r"[^-_.]+|[-_.]+", stem)[:: 1 if from_front else -1] for stem in stems]
    shared = list(itertools.takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False)))
    text = "".join(same[0] for same in (shared if from_front else reversed(shared)))
    return text.strip("-_.")


# --- outputs ---


def _describing(files: Iterable[SavedFile]) -> Iterator[SavedFile]:
    """The files that describe a node; the others are about a job or the cluster."""
    return (file for file in files if any(output.kind.tell is not None for output in file.outputs))


def _is_of_job(file: SavedFile) -> bool:
    """Whether it is about a job, and about the node too where it was saved as that node's."""
    return any(output.kind in job_settings.KINDS for output in file.outputs)


def _is_one_node(files: Iterable[SavedFile]) -> bool:
    """Whether no tool's output is there twice."""
    slots = [slot for file in files for slot in _slots([file])]
    return len(slots) == len(set(slots))


def _slots(files: Iterable[SavedFile]) -> set[str]:
    """A node has one output of each tool; of files of settings it may have several, told apart by their names."""
    return {
        f"{output.kind.name} {output.name}" if output.kind.is_repeatable else output.kind.name
        for file in files
        for output in file.outputs
        if output.kind.tell is not None
    }
