"""Host files and Ansible inventories."""

from __future__ import annotations

from types import ModuleType

import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HostList
from topo_tune.scan.documents import ansible_inventory, host_list
from topo_tune.scan.documents.host_list import parse, recognise

HOSTFILE = text_of(FACTS / "slurm" / "hostfile-superbench.txt")
DEEPOPS = text_of(FACTS / "slurm" / "inventory-deepops.ini")

INVENTORY = """# the cluster
login01 ansible_host=10.0.1.1

[slurm-node]
gpu[01:04]   ansible_user=ubuntu
dgx-[a:c].local # three of them

[all:vars]
ansible_python_interpreter=/usr/bin/python3
not a host = at all

[slurm-cluster:children]
slurm-node
slurm-master
"""

YAML_INVENTORY = """all:
  hosts:
    login01:
      ansible_host: 10.0.1.1
  vars:
    secret: !vault |
      $ANSIBLE_VAULT;1.1;AES256
  children:
    gpu_nodes:
      hosts:
        gpu[01:02]:
        gpu03: {ansible_user: ubuntu}
    slurm:
      children:
        gpu_nodes:
"""

TRIALS = [HOSTFILE, DEEPOPS, INVENTORY, YAML_INVENTORY, "gpu[001-004] slots=8 max_slots=8\ngpu007:8\n"]


def read(text: str) -> HostList:
    return parse(text, "hosts")[0]


# --- host files ---------------------------------------------------------------------------------------------


def test_a_plain_list() -> None:
    hosts, problems = parse(HOSTFILE, "hosts")

    assert problems == ()
    assert hosts.form == "host file"
    assert len(hosts.hosts) == 10
    assert hosts.hosts[0] == "gpuvm00005I"
    assert hosts.slots == ()


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("gpu001 slots=8", 8),
        ("gpu001   slots = 8", 8),
        ("gpu001\tslots=8 max_slots=16", 8),
        ("gpu001 max-slots=16 slots=8", 8),
        ("gpu001:8", 8),
        ("gpu001 cpu=8", 8),
        ("gpu001 slots=8 # the first", 8),
        ("ubuntu@gpu001 slots=8", 8),
        ("gpu001 slots=4\ngpu001 slots=4", 8),
        ("gpu001\ngpu001", 2),
    ],
)
def test_slots_as_they_are_written(line: str, slots: int) -> None:
    assert read(line).hosts == ("gpu001",)
    assert read(line).slots == (("gpu001", slots),)


def test_a_host_on_several_lines_is_told() -> None:
    assert read("gpu001\ngpu002\ngpu001\n").repeated == (("gpu001", 2),)


def test_node_sets_are_written_out() -> None:
    hosts = read("gpu[001-003],gpu007 slots=8\n")

    assert hosts.hosts == ("gpu001", "gpu002", "gpu003", "gpu007")
    assert hosts.slots == tuple((host, 8) for host in hosts.hosts)


def test_what_is_no_host_is_a_problem_with_its_line() -> None:
    hosts, problems = parse("gpu001\n-- end --\ngpu[2-\ngpu[1-999999]\n", "hosts")

    assert hosts.hosts == ("gpu001",)
    assert problems == (
        "line 2: `-- end --` is not a host",
        "line 3: `gpu[2-` is not a host",
        "line 4: the node set `gpu[1-999999]` names more than 65536 nodes",
    )


@pytest.mark.parametrize(
    "text",
    [
        "gpu001\ngpu002\n",
        "# all of them\n\ngpu001.local\ngpu002.local\n",
        "10.0.0.1\n10.0.0.2\n",
        "worker-0 slots=8\n",
        "localhost slots=2\n",
        "node-a:8\nnode-b:8\n",
        "gpu[001-016]\n",
        "ip-10-1-111-198\nip-10-1-53-231\n",
    ],
)
def test_host_files_are_recognised(text: str) -> None:
    assert recognise(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "gpu001\n",  # a word alone may be anything
        "yes\nno\nmaybe\n",
        "mlx5_0\nmlx5_1\n",
        "mlx5_0:1\nmlx5_1:1\n",
        "eth0\neth1\n",
        "ens1f0np0\nens1f1np1\n",
        "nvidia0\nnvidia1\n",
        "renderD128\nrenderD129\n",
        "GPU0\nGPU1\n",
        "libnccl.so.2\nlibcudart.so.12\n",
        "report1.txt\nreport2.txt\n",
        "570.86.15\n570.86.15\n",
        "0xa0001\n0xa0002\n",
        "12\n13\n",
        "NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\n",
        "allreduce,0,65536,tree,simple,4,2,8\n",
        "gpu001 is up\ngpu002 is down\n",
        "nvidia_uvm\nnvidia_drm\nib_core2\n",
        "key1 value=1\nkey2 value=2\n",
        "1.5\n2.5\n",
    ],
)
def test_other_lists_are_none(text: str) -> None:
    assert not recognise(text)


def test_no_other_file_is_taken() -> None:
    taken = {
        file.name
        for file in beside_the_repository(".")
        if file.suffix != ".gz" and recognise(beginning(text_of(file)))
    }

    assert taken <= {"hostfile-superbench.txt"}


def test_a_text_without_a_host_is_refused() -> None:
    with pytest.raises(InputError, match="names no host"):
        parse("# nobody\n", "hosts")


# --- Ansible ------------------------------------------------------------------------------------------------


def test_deepops_inventory_has_groups_and_no_active_host() -> None:
    inventory, problems = ansible_inventory.parse(DEEPOPS, "inventory")
    groups = dict(inventory.groups)

    assert problems == ()
    assert inventory.form == "ansible inventory"
    assert inventory.hosts == ()
    assert {"slurm-master", "slurm-node", "slurm-cluster"} <= set(groups)
    assert groups["slurm-cluster"] == (
        "slurm-master",
        "slurm-node",
        "slurm-cache",
        "slurm-nfs",
        "slurm-metric",
        "slurm-login",
    )
    assert groups["slurm-node"] == ()


def test_hosts_ranges_and_variables_of_an_inventory() -> None:
    inventory, problems = ansible_inventory.parse(INVENTORY, "inventory")

    assert problems == ()
    assert inventory.hosts == (
        "login01",
        "gpu01",
        "gpu02",
        "gpu03",
        "gpu04",
        "dgx-a.local",
        "dgx-b.local",
        "dgx-c.local",
    )
    assert dict(inventory.groups)["slurm-cluster"] == ("slurm-node", "slurm-master")


def test_a_range_with_a_step() -> None:
    inventory, _ = ansible_inventory.parse("[a]\nn[1:7:2]\n", "inventory")

    assert inventory.hosts == ("n1", "n3", "n5", "n7")


def test_an_inventory_in_yaml() -> None:
    inventory, problems = ansible_inventory.parse(YAML_INVENTORY, "inventory.yaml")

    assert problems == ()
    assert inventory.hosts == ("login01", "gpu01", "gpu02", "gpu03")
    assert dict(inventory.groups) == {
        "all": ("login01", "gpu_nodes", "slurm"),
        "gpu_nodes": ("gpu01", "gpu02", "gpu03"),
        "slurm": ("gpu_nodes",),
    }


@pytest.mark.parametrize(
    "text", [DEEPOPS, INVENTORY, YAML_INVENTORY, "[gpu]\ngpu01\n", DEEPOPS.replace("\n", "\r\n")]
)
def test_inventories_are_recognised(text: str) -> None:
    assert ansible_inventory.recognise(beginning(text).replace("\r", ""))


@pytest.mark.parametrize(
    "text",
    [
        "[Unit]\nDescription=fabric manager\n[Service]\nEnvironment=NCCL_DEBUG=INFO\n",
        "[section]\n",
        "[ 1.5] nvidia: loading\n",
        "services:\n  web:\n    hosts:\n      - a\n",
        HOSTFILE,
    ],
)
def test_other_files_are_no_inventories(text: str) -> None:
    assert not ansible_inventory.recognise(text)


@pytest.mark.parametrize("text", ["", "# [gpu]\n"])
def test_an_inventory_without_groups_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no group of hosts"):
        ansible_inventory.parse(text, "inventory")


# --- any text -----------------------------------------------------------------------------------------------


# --- any text -----------------------------------------------------------------------------------------------

READERS = pytest.mark.parametrize(
    "reader", [host_list, ansible_inventory], ids=["host_list", "ansible_inventory"]
)


@READERS
@pytest.mark.parametrize(
    "text",
    [
        *huge("gpu001 slots=8"),
        *huge("gpu[1-9],"),
        *huge("[g]\nn[1:9]"),
        *huge("a"),
        "all:\n" + huge("  hosts:")[0],
    ],
    ids=lambda text: f"{text[:20]!r}-{len(text)}",
)
def test_five_megabytes_are_read_or_refused(reader: ModuleType, text: str) -> None:
    reader.recognise(beginning(text))
    told = read_or_refused(reader.parse, text)

    assert told is None or len(told[0].hosts) <= 1 << 16
    assert told is None or len(told[1]) <= 22


@READERS
@settings(max_examples=60, deadline=None)
@given(text=damaged(TRIALS))
def test_any_text_is_read_or_refused(reader: ModuleType, text: str) -> None:
    reader.recognise(beginning(text))
    told = read_or_refused(reader.parse, text)

    assert told is None or isinstance(told[0], HostList)
