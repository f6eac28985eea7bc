"""YAML text -> plain values, with the line of each: strict where PyYAML is lenient.

A key written twice is refused. Plain scalars are read by YAML 1.2's short list (true, false, null, decimal
numbers), so that `off`, `010`, `12:30` and a date stay the text that was written. Aliases and merge keys
(`<<`) work; what they expand to is bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from topo_tune.errors import InputError

Path = tuple[str | int, ...]
"""Keys and positions from the root: ("racks", 1, "nodes")."""

_MAX_VALUES = 200_000
"""Forty times an inventory of 4,000 nodes written one a line; aliases of aliases pass it in a few levels."""

_MAX_DEPTH = 32
"""The schema needs five."""

_TRUE_FALSE = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")}


class YamlFile:
    """The values of a YAML file, and where each was written."""

    def __init__(self, file: str, value: Any, lines: dict[Path, int]) -> None:
        self.file = file
        self.value = value
        self._lines = lines

    def line_of(self, path: Path) -> int:
        """The line, from 1, of a key or list item; for what is not written, of what is nearest around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def value_at(self, path: Path) -> Any:
        """What stands there. Raises LookupError."""
        value = self.value
        for step in path:
            value = value[step]
        return value

    def error(self, path: Path, message: str, *, hint: str | None = None) -> InputError:
        """An InputError that names file, line and field."""
        return InputError(message, file=self.file, line=self.line_of(path), field=spell(path), hint=hint)


def spell(path: Path) -> str:
    """`$.racks[1].nodes`."""
    return "$" + "".join(_spell_step(step) for step in path)


def read_yaml(text: str, file: str) -> YamlFile:
    """The values of a YAML text; `file` is for messages. Raises InputError with the line of what is wrong."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as exc:
        raise _syntax_error(exc, text, file) from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise InputError(f"a character that YAML does not allow: {exc.reason}", file=file, line=line) from exc
    except RecursionError as exc:
        raise InputError("is nested too deeply", file=file) from exc
    builder = _Builder(file)
    value = None if root is None else builder.value(root, ())
    return YamlFile(file, value, builder.lines)


class _Builder:
    """Turns PyYAML's nodes into values, remembering lines and counting what aliases expand to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Path, int] = {}
        self._count = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._bound(node, len(path))
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._refuse_tag(node, path, {_TAG + "seq"})
            return [self.value(item, (*path, position)) for position, item in enumerate(node.value)]
        self._refuse_tag(node, path, {_TAG + "map"})
        mapping = {}
        for key, line, item in self._entries(node, path, len(path)):
            own_path = (*path, key)
            self.lines[own_path] = line
            mapping[key] = self.value(item, own_path)
        return mapping

    def _entries(self, node: yaml.Node, path: Path, depth: int) -> Iterator[tuple[str, int, yaml.Node]]:
        """A mapping's own entries, then those it merges in; what is nearer wins."""
        self._bound(node, depth)
        own: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, item in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, path, "a key must be text")
            key = key_node.value
            if key in own:
                raise InputError(
                    f"`{key}` is written twice, on lines {own[key]} and {_line(key_node)}",
                    file=self.file,
                    line=_line(key_node),
                    field=spell((*path, key)),
                    hint="keep one of them",
                )
            own[key] = _line(key_node)
            if key_node.tag == _TAG + "merge":
                merged.extend(item.value if isinstance(item, yaml.SequenceNode) else [item])
            else:
                yield key, _line(key_node), item
        seen = set(own)
        for mapping in merged:
            if not isinstance(mapping, yaml.MappingNode):
                raise self._error(mapping, path, "`<<` merges a mapping, or a list of mappings")
            for key, line, item in self._entries(mapping, path, depth + 1):
                if key not in seen:
                    seen.add(key)
                    yield key, line, item

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        self._refuse_tag(node, path, _PLAIN_TAGS)
        text: str = node.value
        return text if node.style else _plain(text)

    def _bound(self, node: yaml.Node, depth: int) -> None:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise self._error(node, (), f"expands to more than {_MAX_VALUES} values")
        if depth > _MAX_DEPTH:
            raise self._error(node, (), f"is nested more than {_MAX_DEPTH} levels deep, or contains itself")

    def _refuse_tag(self, node: yaml.Node, path: Path, known: set[str]) -> None:
        if node.tag not in known:
            raise self._error(
                node, path, f"the YAML tag `{node.tag}` means nothing here", hint="remove the tag"
            )

    def _error(self, node: yaml.Node, path: Path, message: str, *, hint: str | None = None) -> InputError:
        return InputError(message, file=self.file, line=_line(node), field=spell(path), hint=hint)


def _plain(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _TRUE_FALSE:
        return _TRUE_FALSE[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    # What YAML 1.2 calls an integer and NCCL or a node name means otherwise (`010`) stays text.
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit() and math.isfinite(float(text)):
        return float(text)
    return text


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _spell_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if re.fullmatch(r"[\w-]+", step) else f'["{step}"]'


def _syntax_error(exc: yaml.MarkedYAMLError, text: str, file: str) -> InputError:
    lines = text.rstrip().split("\n")
    mark = exc.problem_mark or exc.context_mark
    if mark is not None and exc.context_mark is not None and mark.line >= len(lines):
        # Something was never closed: where it was opened says more than the end of the file.
        mark = exc.context_mark
    line = None if mark is None else min(mark.line + 1, len(lines))
    written = "" if line is None else lines[line - 1]
    return InputError(
        f"is not YAML: {exc.problem or exc.context}",
        file=file,
        line=line,
        hint=_syntax_hint(str(exc.problem), written),
    )


def _syntax_hint(problem: str, written: str) -> str:
    if "\t" in written:
        return "YAML indents with spaces; this line holds a tab"
    if "another document" in problem or "expected a single document" in problem:
        return "one file describes one cluster; remove the second `---`"
    if node_set := re.search(r"[\w.-]+\[[\d,-]+\]", written) if "expected ','" in problem else None:
        return f'inside brackets or braces, put a node set in quotes: "{node_set[0]}"'
    if "mapping values are not allowed" in problem:
        return "check the indentation, and put text that holds `: ` in quotes"
    if "cannot start any token" in problem:
        return "put text that begins with a special character in quotes"
    if "alias" in problem:
        return "an alias `*name` needs its anchor `&name` before it"
    return "check the indentation, the brackets and the quotes around this line"
