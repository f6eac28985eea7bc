"""Every file under configs/clusters/ is read, says when to use it, and means what its comments say."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.inventory import read_inventory
from topo_tune.records.inventory import BackendName, ConnectionKind, ReplayFault
from topo_tune.records.nccl_env import nccl_env

FOLDER = Path(__file__).parents[3] / "configs" / "clusters"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.is_file())


@pytest.mark.parametrize("file", FILES)
def test_every_example_is_read(file: str) -> None:
    assert read_inventory(FOLDER / file).nodes()


@pytest.mark.parametrize("file", FILES)
def test_every_example_says_when_to_use_it(file: str) -> None:
    head = (FOLDER / file).read_text().partition("\n\n")[0]

    assert head.startswith("# ")
    assert "Use it " in head


def test_the_minimal_file_has_ten_lines_at_most() -> None:
    assert len((FOLDER / "minimal.yaml").read_text().splitlines()) <= 10


def test_the_jump_example_has_two_racks_behind_a_bastion() -> None:
    inventory = read_inventory(FOLDER / "two-racks-ssh-jump.yaml")

    assert inventory.describe() == "31 nodes in 2 racks: gpu[001-024,026-032]"
    assert inventory.ssh.jump == "ops@bastion.example.org"
    assert inventory.node("gpu026").address == "10.20.0.126"


def test_the_container_example_starts_python_in_a_container() -> None:
    inventory = read_inventory(FOLDER / "containers.yaml")

    assert inventory.node("gpu001").python == ("docker", "exec", "-i", "train", "python3")
    assert inventory.node("gpu009").python == ("podman", "exec", "-i", "train", "python3")


def test_the_nccl_tests_example_starts_its_job_with_mpirun() -> None:
    inventory = read_inventory(FOLDER / "nccl-tests.yaml")

    assert inventory.backend is BackendName.NCCL_TESTS
    assert inventory.nccl_tests is not None
    assert inventory.nccl_tests.folder == "/opt/nccl-tests/build"
    assert inventory.nccl_tests.launcher[:5] == ("mpirun", "-np", "{processes}", "-H", "{slots}")


def test_the_one_host_example_splits_it_into_two_nodes_over_loopback() -> None:
    inventory = read_inventory(FOLDER / "one-host-two-nodes.yaml")

    assert inventory.as_nodes == 2
    assert inventory.backend is BackendName.NCCL
    assert inventory.env == nccl_env({"NCCL_SOCKET_IFNAME": "lo"})
    assert inventory.sizes_bytes == (8192, 131072, 2097152, 33554432)
    assert [node.connection for node in inventory.nodes()] == [ConnectionKind.LOCAL]


def test_the_laptop_example_uses_gloo() -> None:
    assert read_inventory(FOLDER / "gloo-laptop.yaml").backend is BackendName.GLOO


def test_the_demo_replays_four_nodes_with_a_fault_in_the_second_rack() -> None:
    inventory = read_inventory(FOLDER / "replay-demo.yaml")

    assert inventory.describe() == "4 nodes in 2 racks: n[1-4]"
    assert inventory.node("n3").root == str(FOLDER / "demo-nodes" / "n3")
    assert inventory.weights == ((8192, 0.0), (131072, 1.0), (2097152, 1.0), (33554432, 1.0))
    assert inventory.replay is not None
    assert inventory.replay.surface == "h200x2-two-node-tcp"
    assert inventory.replay.faults == (ReplayFault(racks=("rack2",), tuned_time_factor=1.5),)


def test_the_host_file_example_has_eight_ranks_a_node() -> None:
    assert read_inventory(FOLDER / "hosts.txt").ranks_per_node == 8


TEXTS = [(FOLDER / file).read_text() for file in FILES]
CHARACTERS = "[]{}:'\"&*~#|>@%\\$`\t\n"
PIECES = st.sampled_from([*CHARACTERS, "- ", "<<: ", "null", "-1", "010", "1e400", "[1-3]", "..", "é"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.sampled_from(TEXTS),
    edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 6), PIECES), min_size=1, max_size=4),
)
def test_whatever_happens_to_a_file_it_is_read_or_refused(
    text: str, edits: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    path = tmp_path / "edited.yaml"
    path.write_text(functools.reduce(_edited, edits, text))

    # Any other exception fails the test.
    with contextlib.suppress(InputError):
        assert read_inventory(path).nodes()


def _edited(text: str, edit: tuple[int, int, str]) -> str:
    """Some characters taken out, and a piece put in their place."""
    at, taken, piece = edit
    at %= len(text) + 1
    return text[:at] + piece + text[at + taken :]
