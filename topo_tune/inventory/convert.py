"""YAML values -> ClusterFile: msgspec checks the types, and its errors are put into the file's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from topo_tune.errors import InputError, did_you_mean
from topo_tune.inventory.yaml_file import Path, YamlFile

Schema = TypeVar("Schema")

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<in_key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[(\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_WRONG_TYPE = re.compile(r"Expected `(.*)`, got `(\w+)`$")
_BAD_ENUM = re.compile(r"Invalid enum value ", re.DOTALL)
_OUT_OF_RANGE = re.compile(r"Expected `(int|float)` (.*)$")
_TOO_SHORT = re.compile(r"Expected `(array|str)` of length >= 1$")

_TYPE_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "object": "a mapping",
    "array": "a list",
}


def convert(document: YamlFile, schema: type[Schema]) -> Schema:
    """The document as `schema`. Raises InputError with file, line, field, and the nearest right value."""
    try:
        return msgspec.convert(document.value, schema, strict=True)
    except msgspec.ValidationError as exc:
        raise _Translation(document, schema, str(exc)).error() from exc


class _Translation:
    """One msgspec message about one document."""

    def __init__(self, document: YamlFile, schema: type[Any], message: str) -> None:
        self.document, self.schema = document, schema
        match = _AT.match(message)
        self.what = message if match is None else match["what"]
        self.path = self._find(match["path"] or "") if match is not None else ()
        self.value = document.value_at(self.path)
        self.type = _type_at(inspect.type_info(schema), self.path)

    def error(self) -> InputError:
        if match := _UNKNOWN.match(self.what):
            return self._unknown_key(match[1])
        if match := _MISSING.match(self.what):
            return self._say(f"`{match[1]}` is missing", _required_hint(self.type))
        if match := _WRONG_TYPE.match(self.what):
            return self._wrong_type(match[1].split(" | "), match[2])
        if _BAD_ENUM.match(self.what):
            known = _enum_values(self.type)
            return self._say(f"unknown value: `{self.value}`", did_you_mean(str(self.value), known))
        if match := _OUT_OF_RANGE.match(self.what):
            rule = match[2].replace(".0", "")
            return self._say(f"expected {_TYPE_WORDS[match[1]]} {rule}, found: {self.value}")
        if match := _TOO_SHORT.match(self.what):
            empty = (
                "expected text, found empty text"
                if match[1] == "str"
                else "expected at least one entry, found none"
            )
            return self._say(empty, "remove the key, or give it a value")
        return self._say(f"not a valid value: `{self.value}`", self._hint_of_field())

    def _say(self, message: str, hint: str | None = None) -> InputError:
        return self.document.error(self.path, message, hint=hint)

    def _unknown_key(self, key: str) -> InputError:
        # A key that is right elsewhere was put into the wrong place; only then look for one that is misspelt.
        homes = sorted({home for home, keys in _all_keys(inspect.type_info(self.schema)) if key in keys})
        hint = f"`{key}` belongs " + " or ".join(homes) if homes else did_you_mean(key, _keys(self.type))
        return self.document.error((*self.path, key), f"unknown key `{key}`", hint=hint)

    def _wrong_type(self, expected: list[str], got: str) -> InputError:
        words = " or ".join(_TYPE_WORDS.get(word, word) for word in reversed(expected))
        found = _TYPE_WORDS.get(got, got)
        shown = f": {_as_written(self.value)}" if got in {"str", "int", "float", "bool"} else ""
        return self._say(f"expected {words}, found {found}{shown}", self._type_hint(expected, got))

    def _type_hint(self, expected: list[str], got: str) -> str | None:
        if got == "null":
            return "remove the key, or give it a value"
        if self.path[:1] == ("env",) and got == "bool":
            return "NCCL takes numbers: write 1 for true, 0 for false"
        if self.path[:2] == ("bench", "sizes") and got == "float":
            return "write sizes as `8K`, `128K`, `32M`"
        if "str" in expected and got in {"int", "float", "bool"}:
            return f'put it in quotes: "{_as_written(self.value)}"'
        if "object" in expected:
            keys = _keys(self.type)
            return "it holds keys: " + ", ".join(f"`{key}`" for key in keys) if keys else None
        if expected == ["array"] and got == "str":
            return f"write it as a list: [{self.value}]"
        if expected == ["array"]:
            return "begin each entry with `- `"
        if got == "str" and str(self.value).isdigit():
            return "remove the quotes"
        return None

    def _hint_of_field(self) -> str | None:
        if not self.path:
            return None
        owner = _type_at(inspect.type_info(self.schema), self.path[:-1])
        if not isinstance(owner, inspect.StructType):
            return None
        field = next(field for field in owner.fields if field.encode_name == self.path[-1])
        extra = field.type.extra if isinstance(field.type, inspect.Metadata) else None
        return None if extra is None else extra.get("hint")

    def _find(self, text: str) -> Path:
        """msgspec's path as ours. It does not say which key of a free mapping is meant: search."""
        path: Path = ()
        for name, position, anywhere in _STEP.findall(text):
            if anywhere:
                prefix = f"{self.what} - at `${text}`"
                path = (*path, self._culprit(path, prefix))
            else:
                path = (*path, name or int(position))
        return path

    def _culprit(self, path: Path, message: str) -> str:
        """The key of the mapping at `path` that gives `message`, found by halving the mapping."""
        keys = list(self.document.value_at(path))
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            keys = half if self._fails_with(path, half, message) else keys[len(half) :]
        return str(keys[0])

    def _fails_with(self, path: Path, keys: list[str], message: str) -> bool:
        whole = self.document.value_at(path)
        try:
            msgspec.convert(
                _replaced(self.document.value, path, {key: whole[key] for key in keys}), self.schema
            )
        except msgspec.ValidationError as exc:
            return str(exc) == message
        return False


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


def _unwrap(kind: inspect.Type) -> inspect.Type:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _type_at(kind: inspect.Type, path: Path) -> inspect.Type | None:
    """The schema's type at a path; of a union, the member that the path fits."""
    kind = _unwrap(kind)
    if isinstance(kind, inspect.UnionType):
        found = (_type_at(member, path) for member in kind.types)
        return next((member for member in found if member is not None), None)
    if not path:
        return kind
    if isinstance(kind, inspect.StructType):
        field = next((field for field in kind.fields if field.encode_name == path[0]), None)
        return None if field is None else _type_at(field.type, path[1:])
    if isinstance(kind, inspect.ListType) and isinstance(path[0], int):
        return _type_at(kind.item_type, path[1:])
    if isinstance(kind, inspect.DictType):
        return _type_at(kind.value_type, path[1:])
    return None


def _keys(kind: inspect.Type | None) -> list[str]:
    return [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []


def _all_keys(kind: inspect.Type, home: str = "at the top level") -> Iterator[tuple[str, list[str]]]:
    """Every block of the schema with its keys."""
    kind = _unwrap(kind)
    if isinstance(kind, inspect.StructType):
        yield home, _keys(kind)
        for field in kind.fields:
            yield from _all_keys(field.type, f"under `{field.encode_name}`")
    elif isinstance(kind, inspect.ListType):
        yield from _all_keys(kind.item_type, home)
    elif isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _all_keys(member, home)


def _enum_values(kind: inspect.Type | None) -> list[str]:
    return [str(member.value) for member in kind.cls] if isinstance(kind, inspect.EnumType) else []


def _required_hint(kind: inspect.Type | None) -> str | None:
    if not isinstance(kind, inspect.StructType):
        return None
    required = [f"`{field.encode_name}`" for field in kind.fields if field.required]
    return f"needed here: {', '.join(required)}"


def _as_written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
