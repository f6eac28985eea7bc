"""The JSON schema and the reference page say what the reader does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topo_tune.inventory import read_inventory
from topo_tune.inventory.schema import cluster_file_schema, schema_text

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "cluster-file.md"
SCHEMA = ROOT / "docs" / "reference" / "cluster-file.schema.json"


def _keys(
    schema: dict[str, Any], part: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key as the page names it (`ssh.user`, `racks[].name`), with its schema."""
    for name, value in part.get("properties", {}).items():
        yield prefix + name, value
        items = value.get("items", {})
        reference = value.get("$ref") or items.get("$ref", "")
        if reference:
            inner = schema["$defs"][reference.rpartition("/")[2]]
            yield from _keys(schema, inner, f"{prefix}{name}{'[]' if items else ''}.")


KEYS = dict(_keys(cluster_file_schema(), cluster_file_schema()))


def test_the_schema_on_disk_is_up_to_date() -> None:
    assert SCHEMA.read_text() == schema_text()


def test_the_schema_knows_every_key_of_the_file() -> None:
    assert {"racks[].nodes", "ssh.become", "bench.weights", "replay.faults[].racks", "env"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_heading_in_the_page(key: str) -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), flags=re.MULTILINE)

    assert any(f"`{key}`" in heading for heading in headings)


def test_every_heading_of_the_page_is_a_key() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), flags=re.MULTILINE)

    assert {key for heading in headings for key in re.findall(r"`([^`]+)`", heading)} == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_description(key: str) -> None:
    assert KEYS[key]["description"].endswith(".")


def test_no_block_takes_unknown_keys() -> None:
    schema = cluster_file_schema()
    blocks = [schema, *(part for part in schema["$defs"].values() if part.get("type") == "object")]

    assert len(blocks) == 7
    assert all(block["additionalProperties"] is False for block in blocks)


def test_enum_values_are_listed() -> None:
    definitions = cluster_file_schema()["$defs"]

    assert definitions["BackendName"]["enum"] == ["gloo", "nccl", "nccl-tests", "replay"]
    assert definitions["ConnectionKind"]["enum"] == ["local", "ssh"]
    assert definitions["Become"]["enum"] == ["none", "sudo"]


def test_the_schema_is_titled_and_names_its_draft() -> None:
    schema = json.loads(SCHEMA.read_text())

    assert schema["title"] == "topo-tune cluster file"
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
RACKS = "racks: [{name: rack1, nodes: gpu001}, {name: rack2, nodes: gpu002}]\n"
"""What most examples of the page need around them to be a whole file."""

# And what some need besides.
COMPLETION = {
    "connection: local": "root: nodes/{node}\nbench: {backend: gloo}\n",
    "root:": "bench: {backend: gloo}\n",
    "replay:": "bench: {backend: replay}\n",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_page_is_read(example: str, tmp_path: Path) -> None:
    path = tmp_path / "page.yaml"
    completion = "".join(text for start, text in COMPLETION.items() if example.startswith(start))
    path.write_text(example + completion + ("" if example.startswith("racks:") else RACKS))

    assert read_inventory(path).racks
