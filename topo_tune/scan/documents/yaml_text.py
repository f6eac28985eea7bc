"""YAML texts of other people's tools as plain values: every scalar is the text that was written.

Tags mean nothing here (Ansible's `!vault`), aliases give what they name, and what a text may hold is bounded.
"""

from __future__ import annotations

from typing import Any

import yaml

from topo_tune.errors import InputError

_EVENTS_LIMIT = 500_000
"""A thousand nodes as `kubectl get nodes -o yaml` prints them have fewer."""

_DEPTH_LIMIT = 40

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(text: str, *, file: str | None = None) -> tuple[Any, ...]:
    """The documents of a YAML text, made of dict, list and str. Raises InputError."""
    try:
        return _documents(text, file)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = None if mark is None else mark.line + 1
        raise InputError(f"is not YAML: {exc.problem or exc.context}", file=file, line=line) from exc
    except yaml.YAMLError as exc:
        raise InputError("is not YAML: a character that YAML does not allow", file=file) from exc


def _documents(text: str, file: str | None) -> tuple[Any, ...]:
    documents: list[Any] = []
    anchors: dict[str, Any] = {}
    open_values: list[_Open] = []
    value: Any
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > _EVENTS_LIMIT or len(open_values) > _DEPTH_LIMIT:
            raise InputError("holds more than a file about a cluster does", file=file)
        if isinstance(event, yaml.CollectionStartEvent):
            open_values.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor))
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            ended = open_values.pop()
            value = ended.value
            anchor = ended.anchor
        elif isinstance(event, yaml.ScalarEvent):
            value = event.value
            anchor = event.anchor
        elif isinstance(event, yaml.AliasEvent):
            value = anchors.get(event.anchor or "", "")
            anchor = None
        else:
            continue
        if anchor is not None:
            anchors[anchor] = value
        if open_values:
            open_values[-1].add(value)
        else:
            documents.append(value)
    return tuple(documents)


class _Open:
    """A mapping or a list whose end has not come yet."""

    def __init__(self, value: dict[str, Any] | list[Any], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self._key: str | None = None

    def add(self, value: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self._key is None:
            self._key = value if isinstance(value, str) else ""
        else:
            self.value[self._key] = value
            self._key = None
