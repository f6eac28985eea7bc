"""Which nodes a host file names, and how what is none is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topo_tune.errors import InputError
from topo_tune.inventory import read_inventory
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions

DATA = Path(__file__).parent / "data"

Read = Callable[[str], Inventory]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_text(text: str) -> Inventory:
        path = tmp_path / "hosts"
        path.write_text(text)
        return read_inventory(path)

    return read_text


def test_a_host_file_is_one_rack_reached_by_ssh(read: Read) -> None:
    assert read("# two nodes\nn1   # the first\n\n  n2\n") == Inventory(
        name="hosts",
        racks=(
            Rack(
                name="all",
                nodes=(
                    Node(name="n1", rack="all", address="n1", connection=ConnectionKind.SSH),
                    Node(name="n2", rack="all", address="n2", connection=ConnectionKind.SSH),
                ),
            ),
        ),
        ssh=SshOptions(),
        backend=BackendName.NCCL,
    )


def test_a_host_file_from_a_real_cluster_is_read() -> None:
    inventory = read_inventory(DATA / "hostfile-superbench.txt")

    assert [node.name[-1] for node in inventory.nodes()] == list("IJKLMNOPQR")


def test_a_line_may_be_a_node_set(read: Read) -> None:
    assert read("gpu[001-016]\ngpu[020,022]\n").describe() == "18 nodes in 1 rack: gpu[001-016,020,022]"


@pytest.mark.parametrize(
    "text", ["n1 slots=8\nn2 slots=8\n", "n1:8\nn2:8\n", "n[1-2]:8\n", "n1:8\nn2 slots=8\n"]
)
def test_equal_slots_become_ranks_per_node(read: Read, text: str) -> None:
    inventory = read(text)

    assert inventory.ranks_per_node == 8
    assert inventory.describe() == "2 nodes in 1 rack: n[1-2]"


def test_an_ipv6_address_is_not_a_name_with_slots(read: Read) -> None:
    inventory = read("2001:db8::8\n")

    assert inventory.nodes()[0].name == "2001:db8::8"
    assert inventory.ranks_per_node is None


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (
            "n1 slots=8\nn2 slots=4\n",
            2,
            "line 1 has slots=8 and line 2 has slots=4",
            "the same slots, or none",
        ),
        ("n1 slots=8\nn2\n", 2, "line 1 has slots=8 and line 2 has no slots", "the same slots, or none"),
        ("n1\nn1\n", 2, "`n1` is written twice, on lines 1 and 2", "write `n1 slots=N`"),
        ("n[1-3]\n\nn2\n", 3, "`n2` is written twice, on lines 1 and 3", "write `n2 slots=N`"),
        ("n[1-3],n2\n", 1, "names n2 twice", None),
        ("n1 slot=8\n", 1, "`slot=8` is not understood here", "did you mean `slots`?"),
        ("n1 slots=8 max_slots=16\n", 1, "`max_slots=16` is not understood here", "did you mean `slots`?"),
        ("n1 slots=8 slots=8\n", 1, "`slots=8` is not understood here", None),
        ("n1 slots=x\n", 1, "`slots=x` is not understood here", None),
        ("n1 slots=0\n", 1, "a node with 0 slots takes no ranks", "remove the line"),
        ("n1 n2\n", 1, "`n2` is not understood here", "one node or node set a line"),
        ("n1\nn[2-\n", 2, "bad node set `n[2-`", "gpu[001-016]"),
        ("n1\n$(reboot)\n", 2, "is not a node name", "a host name or an IP address"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(
    read: Read, text: str, line: int, message: str, hint: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        read(text)

    assert caught.value.line == line
    assert message in caught.value.message
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("inventory-deepops.ini", "is an Ansible inventory, which topo-tune does not read yet"),
        ("topology-block-azure.conf", "is a Slurm configuration file, which topo-tune does not read yet"),
    ],
)
def test_other_formats_are_refused_by_name(file: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_inventory(DATA / file)

    assert "write a cluster file" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text", ["[gpus]\ngpu1\n", "gpu1 ansible_host=10.0.0.1\n", "[gpus:children]\nrack1\n"]
)
def test_an_ansible_inventory_is_known_by_its_sections_or_variables(read: Read, text: str) -> None:
    with pytest.raises(InputError, match="is an Ansible inventory"):
        read(text)


@pytest.mark.parametrize(
    "text", ["SwitchName=s1 Nodes=n[1-4]\n", "NodeName=n1 CPUs=4\n", "clustername=lab\n"]
)
def test_a_slurm_file_is_known_by_its_first_keys(read: Read, text: str) -> None:
    with pytest.raises(InputError, match="is a Slurm configuration file"):
        read(text)
