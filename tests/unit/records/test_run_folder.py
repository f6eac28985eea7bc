from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.errors import InputError
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.run_folder import RunFolder, scan_record

NODE = Node("n1", "r1", "127.0.0.1", ConnectionKind.LOCAL)
INVENTORY = Inventory("lab", (Rack("r1", (NODE,)),), SshOptions(), BackendName.GLOO)


@pytest.mark.parametrize("path", ["/proc/nowhere", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_told_with_its_path(path: str) -> None:
    with pytest.raises(InputError, match=f"cannot write {path}"):
        RunFolder.create(Path(path), INVENTORY)


def test_a_folder_is_made_and_found_again(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "new" / "run", INVENTORY)

    assert RunFolder.create(made.path, INVENTORY).inventory == made.inventory


@pytest.mark.parametrize("content", ["GPU0 GPU1", "{}", '{"head": {"schema": "x"}}'])
def test_a_file_that_is_no_scan_record_is_the_users_to_change(tmp_path: Path, content: str) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(content)

    with pytest.raises(InputError, match=f"no scan record: {path}"):
        scan_record(path)
