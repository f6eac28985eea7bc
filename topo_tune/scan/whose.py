"""Which node a saved file belongs to, told by its folder, by its name, and by what lies beside it.

People send dumps in three shapes: a folder for each node; one folder of one node's files, each of another tool; and one
folder of many nodes' files, with the node's name in front of or behind the tool's (`gpu001-ibstat.txt`).
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from pathlib import PurePath

from topo_tune.scan.saved_file import SavedFile

_SEPARATOR = re.compile(r"[-_.]")


def by_node(files: list[SavedFile], *, folder: str | None) -> dict[str, list[SavedFile]]:
    """Name of the node to its files: the subfolder's name, or what `_beside_each_other` finds; in order of names.

    folder: the name of the folder they lie in; None where they were named one by one.
    """
    nodes: dict[str, list[SavedFile]] = defaultdict(list)
    flat = []
    for file in files:
        parts = PurePath(file.name).parts
        if len(parts) > 1:
            nodes[parts[0]].append(file)
        else:
            flat.append(file)
    for node, own in _beside_each_other(flat, folder).items():
        nodes[node].extend(own)
    return dict(nodes)


def _beside_each_other(files: list[SavedFile], folder: str | None) -> dict[str, list[SavedFile]]:
    """One node called like the folder where no tool's output is there twice; else by common words of the names."""
    describing = [file for file in files if file.kind.tell is not None]
    others = [file for file in files if file.kind.tell is None]
    kinds = {file.kind.name for file in describing}
    if folder is not None and len(kinds) > 1 and _is_one_node(describing):
        return {folder: files}
    for from_front, count in _ways_to_sort(describing):
        groups = _sorted_by_words(describing, from_front, count)
        if len(groups) < len(describing) and all(_is_one_node(own) for own in groups.values()):
            break
    else:
        groups = defaultdict(list)
        for file in describing:
            groups[_stem(file)].append(file)
    return {**groups, **{_stem(file): [*groups.get(_stem(file), []), file] for file in others}}


def _ways_to_sort(files: list[SavedFile]) -> list[tuple[bool, int]]:
    """(from the front?, words of the name): as few words as possible first, so that most files come together."""
    most = max((len(_words(file)) for file in files), default=0)
    return [(from_front, count) for from_front in (True, False) for count in range(1, most)]


def _sorted_by_words(files: list[SavedFile], from_front: bool, count: int) -> dict[str, list[SavedFile]]:
    """Files whose names begin (or end) with the same words, under all that their names have in common there."""
    groups: dict[tuple[str, ...], list[SavedFile]] = defaultdict(list)
    for file in files:
        words = _words(file)
        groups[tuple(words[:count] if from_front else words[-count:])].append(file)
    return {_common([_stem(file) for file in own], from_front): own for own in groups.values()}


def _common(stems: list[str], from_front: bool) -> str:
    """`gpu-001` of `gpu-001-topo` and `gpu-001-ibstat`; from the back it is read from the back. One is itself."""
    if len(stems) == 1:
        return stems[0]
    parts = [re.findall(r"[^-_.]+|[-_.]+", stem)[:: 1 if from_front else -1] for stem in stems]
    shared = list(itertools.takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False)))
    text = "".join(same[0] for same in (shared if from_front else reversed(shared)))
    return text.strip("-_.")


def _is_one_node(files: list[SavedFile]) -> bool:
    slots = [_slot(file) for file in files]
    return len(slots) == len(set(slots))


def _slot(file: SavedFile) -> str:
    """A node has one output of each tool; of files of settings it may have several, told apart by their names."""
    return f"{file.kind.name} {file.name}" if file.kind.is_repeatable else file.kind.name


def _stem(file: SavedFile) -> str:
    return PurePath(file.name).stem


def _words(file: SavedFile) -> list[str]:
    return [word for word in _SEPARATOR.split(_stem(file)) if word]
