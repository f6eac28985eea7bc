"""What a cluster file means, and how each mistake in one is refused."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topo_tune.errors import InputError
from topo_tune.inventory import read_inventory
from topo_tune.records.inventory import (
    BackendName,
    Become,
    ConnectionKind,
    Inventory,
    NcclTestsOptions,
    Node,
    Rack,
    ReplayFault,
    ReplayOptions,
    SshOptions,
)
from topo_tune.records.nccl_env import nccl_env

ONE_RACK = "racks:\n  - name: rack1\n    nodes: n[1-2]\n"
"""Three lines, so that what a test appends begins on line 4."""

Read = Callable[[str], Inventory]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_text(text: str) -> Inventory:
        path = tmp_path / "lab.yaml"
        path.write_text(text, encoding="utf-8")
        return read_inventory(path, home=Path("/home/ops"))

    return read_text


@pytest.fixture
def refusal(read: Read) -> Callable[[str], InputError]:
    def refuse(text: str) -> InputError:
        with pytest.raises(InputError) as caught:
            read(text)
        assert caught.value.file is not None
        assert caught.value.file.endswith("lab.yaml")
        return caught.value

    return refuse


Refusal = Callable[[str], InputError]


# -- what a file means


def test_three_lines_are_a_cluster_with_stated_defaults(read: Read) -> None:
    assert read(ONE_RACK) == Inventory(
        name="lab",
        racks=(
            Rack(
                name="rack1",
                nodes=(
                    Node(name="n1", rack="rack1", address="n1", connection=ConnectionKind.SSH),
                    Node(name="n2", rack="rack1", address="n2", connection=ConnectionKind.SSH),
                ),
            ),
        ),
        ssh=SshOptions(),
        backend=BackendName.NCCL,
    )


def test_every_ssh_key_reaches_the_record(read: Read, tmp_path: Path) -> None:
    inventory = read(
        ONE_RACK
        + "ssh: {user: ops, port: 2222, identity: ~/.ssh/id_ed25519, jump: 'ops@bastion:22',\n"
        + "      known_hosts: keys, become: sudo, connect_timeout: 2.5, command_timeout: 30, parallel: 8}\n"
    )

    assert inventory.ssh == SshOptions(
        user="ops",
        port=2222,
        identity="/home/ops/.ssh/id_ed25519",
        jump="ops@bastion:22",
        known_hosts=str(tmp_path / "keys"),
        become=Become.SUDO,
        connect_timeout_seconds=2.5,
        command_timeout_seconds=30.0,
        parallel=8,
    )


def test_a_rack_can_replace_root_python_and_connection(read: Read, tmp_path: Path) -> None:
    inventory = read(
        "python: python3.12\n"
        "bench: {backend: gloo}\n"
        "racks:\n"
        "  - {name: a, nodes: head, connection: local,\n"
        "     root: 'nodes/{node}', python: '~/venv/bin/python -s'}\n"
        "  - {name: b, nodes: gpu1}\n"
    )

    assert inventory.node("head") == Node(
        name="head",
        rack="a",
        address="head",
        connection=ConnectionKind.LOCAL,
        root=str(tmp_path / "nodes" / "head"),
        python=("/home/ops/venv/bin/python", "-s"),
    )
    assert inventory.node("gpu1").python == ("python3.12",)
    assert inventory.node("gpu1").connection is ConnectionKind.SSH


def test_a_local_node_runs_this_python_and_is_met_on_loopback(read: Read) -> None:
    node = read("connection: local\nracks: [{name: a, nodes: desk}]\n").node("desk")

    assert node.python == (sys.executable,)
    assert node.address == "127.0.0.1"


def test_an_address_replaces_the_name(read: Read) -> None:
    inventory = read(ONE_RACK + "addresses: {n1: 10.0.0.1, n2: 'fe80::1%eth0'}\n")

    assert [node.address for node in inventory.nodes()] == ["10.0.0.1", "fe80::1%eth0"]


def test_nodes_keep_the_order_of_their_list(read: Read) -> None:
    inventory = read('racks: [{name: a, nodes: [n9, "n[3-4]", n1]}]\n')

    assert [node.name for node in inventory.nodes()] == ["n9", "n3", "n4", "n1"]


@pytest.mark.parametrize(
    ("written", "root"),
    [("/", "/"), ("/srv/x/", "/srv/x"), ("'~'", "/home/ops"), ("~/x/../y", "/home/ops/y")],
)
def test_a_root_becomes_an_absolute_path(read: Read, written: str, root: str) -> None:
    inventory = read(
        f"connection: local\nroot: {written}\nbench: {{backend: gloo}}\nracks: [{{name: a, nodes: desk}}]\n"
    )

    assert inventory.node("desk").root == root


def test_env_takes_numbers_and_text(read: Read) -> None:
    inventory = read(ONE_RACK + "env: {NCCL_SOCKET_IFNAME: lo, NCCL_IB_DISABLE: 1}\n")

    assert inventory.env == nccl_env({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("[8K, 128K]", (8192, 131072)),
        ("[128K, 8192]", (8192, 131072)),
        ("8K", (8192,)),
        ("8192", (8192,)),
        ("8K..32K", (8192, 16384, 32768)),
        ("8K .. 128K x4", (8192, 32768, 131072)),
        ("8K..100K x4", (8192, 32768)),
        ("8K..8K", (8192,)),
    ],
)
def test_sizes_are_a_list_a_sweep_or_one_size(read: Read, sizes: str, expected: tuple[int, ...]) -> None:
    assert read(ONE_RACK + f"bench: {{sizes: {sizes}}}\n").sizes_bytes == expected


def test_a_size_without_a_weight_counts_nothing(read: Read) -> None:
    inventory = read(ONE_RACK + "bench: {sizes: [8K, 128K, 2M], weights: {128K: 2}}\n")

    assert inventory.weights == ((8192, 0.0), (131072, 2.0), (2097152, 0.0))


def test_a_search_can_be_kept_to_some_nodes(read: Read) -> None:
    assert read(ONE_RACK + "bench: {nodes: n2}\n").bench_nodes == ("n2",)


def test_a_search_measures_on_all_nodes_by_default(read: Read) -> None:
    assert read(ONE_RACK).bench_nodes == ()


def test_weights_alone_are_the_sizes_too(read: Read) -> None:
    inventory = read(ONE_RACK + "bench: {weights: {128K: 1, 8K: 0}}\n")

    assert inventory.sizes_bytes == (8192, 131072)
    assert inventory.weights == ((8192, 0.0), (131072, 1.0))


NCCL_TESTS = "bench: {backend: nccl-tests}\n"


def test_nccl_tests_needs_no_block_of_its_own(read: Read) -> None:
    inventory = read(ONE_RACK + NCCL_TESTS)

    assert (inventory.backend, inventory.nccl_tests) == (BackendName.NCCL_TESTS, NcclTestsOptions())


def test_nccl_tests_takes_a_folder_a_launcher_and_arguments(read: Read) -> None:
    inventory = read(
        ONE_RACK
        + NCCL_TESTS
        + "ranks_per_node: 8\n"
        + "nccl_tests:\n"
        + "  folder: /opt/nccl-tests/build/\n"
        + "  launcher: srun -w {nodes} --ntasks-per-node={processes_per_node} --export='ALL,A=b c'\n"
        + "  gpus_per_process: 4\n"
        + "  arguments: -n 50 -R 1\n"
    )

    assert inventory.nccl_tests == NcclTestsOptions(
        folder="/opt/nccl-tests/build",
        launcher=("srun", "-w", "{nodes}", "--ntasks-per-node={processes_per_node}", "--export=ALL,A=b c"),
        gpus_per_process=4,
        arguments=("-n", "50", "-R", "1"),
    )


def test_other_back_ends_have_no_options_of_nccl_tests(read: Read) -> None:
    assert read(ONE_RACK).nccl_tests is None


def test_replay_takes_a_surface_and_faults(read: Read) -> None:
    inventory = read(
        ONE_RACK
        + "bench: {backend: replay}\n"
        + "replay: {surface: h200x2-two-node-tcp, faults: [{racks: [rack1], tuned_time_factor: 1.12}]}\n"
    )

    assert inventory.replay == ReplayOptions(
        surface="h200x2-two-node-tcp", faults=(ReplayFault(racks=("rack1",), tuned_time_factor=1.12),)
    )


def test_a_surface_can_be_a_file_beside_the_cluster_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("")

    inventory = read(ONE_RACK + "bench: {backend: replay}\nreplay: {surface: mine.jsonl}\n")

    assert inventory.replay == ReplayOptions(surface=str(tmp_path / "mine.jsonl"))


def test_anchors_and_merge_keys_work(read: Read) -> None:
    inventory = read(
        "bench: {backend: gloo}\n"
        "racks:\n"
        "  - &first {name: a, nodes: n1, root: /srv, python: python3.11}\n"
        "  - {<<: *first, name: b, nodes: n2}\n"
        "  - {<<: [*first, {connection: local}], name: c, nodes: n3}\n"
    )

    assert [node.root for node in inventory.nodes()] == ["/srv", "/srv", "/srv"]
    assert inventory.node("n3").connection is ConnectionKind.LOCAL


def test_json_is_yaml(read: Read) -> None:
    assert read('{"racks": [{"name": "a", "nodes": ["n1"]}]}\n').describe() == "1 node in 1 rack: n1"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + ONE_RACK.replace("\n", "\r\n").encode())

    assert read_inventory(path).describe() == "2 nodes in 1 rack: n[1-2]"


def test_the_name_defaults_to_the_file_in_letters_a_name_may_have(tmp_path: Path) -> None:
    path = tmp_path / "my lab (new).yaml"
    path.write_text(ONE_RACK)

    assert read_inventory(path).name == "my-lab-new"


def test_four_thousand_nodes_in_a_hundred_racks_take_less_than_two_seconds(read: Read) -> None:
    racks = "".join(
        f"- name: rack{rack}\n  nodes:\n" + "".join(f"  - gpu{rack:03}-{node:02}\n" for node in range(40))
        for rack in range(100)
    )
    addresses = "".join(
        f"  gpu{rack:03}-{node:02}: 10.0.{rack}.{node}\n" for rack in range(100) for node in range(40)
    )
    start = time.process_time()

    inventory = read(f"racks:\n{racks}addresses:\n{addresses}")

    assert time.process_time() - start < 2
    assert len(inventory.nodes()) == 4000


# -- mistakes of the schema: (text behind ONE_RACK or whole, line, field, part of the message, hint)


@pytest.mark.parametrize(
    ("text", "line", "field", "message", "hint"),
    [
        ("nmae: x", 4, "$.nmae", "unknown key `nmae`", "did you mean `name`?"),
        ("ssh:\n  usr: ops", 5, "$.ssh.usr", "unknown key `usr`", "did you mean `user`?"),
        ("user: ops", 4, "$.user", "unknown key `user`", "`user` belongs under `ssh`"),
        ("nodes: n1", 4, "$.nodes", "unknown key `nodes`", "`nodes` belongs under `bench` or under `racks`"),
        ("bench: {as_nodes: 2}", 4, "$.bench.as_nodes", "unknown key `as_nodes`", "at the top level"),
        ("sizes: [8K]", 4, "$.sizes", "unknown key `sizes`", "`sizes` belongs under `bench`"),
        ("connection: shh", 4, "$.connection", "unknown value: `shh`", "did you mean `ssh`?"),
        ("bench:\n  backend: ncll", 5, "$.bench.backend", "unknown value: `ncll`", "did you mean `nccl`?"),
        ("ssh: {become: root}", 4, "$.ssh.become", "unknown value: `root`", "known: `none`, `sudo`"),
        ("as_nodes: two", 4, "$.as_nodes", "expected a whole number, found text: two", None),
        ("as_nodes: '2'", 4, "$.as_nodes", "expected a whole number, found text: 2", "remove the quotes"),
        ("as_nodes: true", 4, "$.as_nodes", "expected a whole number, found true or false: true", None),
        ("as_nodes: 0", 4, "$.as_nodes", "expected a whole number >= 1, found: 0", None),
        ("ranks_per_node: -1", 4, "$.ranks_per_node", "expected a whole number >= 1, found: -1", None),
        ("name: 12", 4, "$.name", "expected text, found a whole number: 12", 'put it in quotes: "12"'),
        ("name: a b", 4, "$.name", "not a valid value: `a b`", "up to 64 letters"),
        ("bench:", 4, "$.bench", "expected a mapping, found nothing", "remove the key, or give it a value"),
        ("ssh: ops", 4, "$.ssh", "expected a mapping, found text: ops", "it holds keys: `user`, `port`"),
        ("ssh: {port: 70000}", 4, "$.ssh.port", "expected a whole number <= 65535, found: 70000", None),
        ("ssh: {connect_timeout: 0}", 4, "$.ssh.connect_timeout", "expected a number > 0, found: 0", None),
        (
            "ssh: {connect_timeout: .inf}",
            4,
            "$.ssh.connect_timeout",
            "expected a number, found text: .inf",
            None,
        ),
        ("ssh: {user: a@b}", 4, "$.ssh.user", "not a valid value: `a@b`", "a login name such as `ops`"),
        ("ssh: {jump: -oX=y}", 4, "$.ssh.jump", "not a valid value: `-oX=y`", "written `[user@]host[:port]`"),
        ("ssh: {jump: 'b:99999'}", 4, "$.ssh.jump", "there is no port 99999", "ports are 1 to 65535"),
        ("root: ''", 4, "$.root", "expected text, found empty text", "remove the key"),
        (
            "env: {NCCL_IB_DISABLE: true}",
            4,
            "$.env.NCCL_IB_DISABLE",
            "found true or false",
            "1 for true, 0 for",
        ),
        (
            "env:\n  NCCL_DEBUG: INFO\n  NCCL_ALGO: 1.5",
            6,
            "$.env.NCCL_ALGO",
            "found a number",
            'quotes: "1.5"',
        ),
        ("bench: {sizes: 8.5}", 4, "$.bench.sizes", "found a number: 8.5", "write sizes as `8K`"),
        (
            "bench:\n  weights:\n    8K: 1\n    2M: -1",
            7,
            "$.bench.weights.2M",
            "expected a number >= 0",
            None,
        ),
        (
            "bench:\n  weights:\n    8K: 1\n    2M: x",
            7,
            "$.bench.weights.2M",
            "expected a number, found text",
            None,
        ),
        (
            "replay: {surface: x, faults: [{racks: r, tuned_time_factor: 1}]}",
            4,
            "$.replay.faults[0].racks",
            "expected a list, found text: r",
            "write it as a list: [r]",
        ),
        (
            "replay: {surface: x, faults: [{racks: [r]}]}",
            4,
            "$.replay.faults[0]",
            "`tuned_time_factor` is missing",
            "needed here: `racks`, `tuned_time_factor`",
        ),
        ("replay: {}", 4, "$.replay", "`surface` is missing", "needed here: `surface`"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_line_field_and_hint(
    refusal: Refusal, text: str, line: int, field: str, message: str, hint: str | None
) -> None:
    error = refusal(ONE_RACK + text + "\n")

    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert (error.hint is None) if hint is None else (hint in str(error.hint))


@pytest.mark.parametrize(
    ("text", "line", "field", "message", "hint"),
    [
        ("name: x", 1, "$", "`racks` is missing", "needed here: `racks`"),
        ("name: x\nracks: []", 2, "$.racks", "expected at least one entry, found none", "give it a value"),
        ("racks: {a: n1}", 1, "$.racks", "expected a list, found a mapping", "begin each entry with `- `"),
        (
            "racks:\n- gpu1",
            2,
            "$.racks[0]",
            "expected a mapping, found text: gpu1",
            "it holds keys: `name`, `nodes`",
        ),
        (
            "racks:\n- {name: a, node: n1}",
            2,
            "$.racks[0].node",
            "unknown key `node`",
            "did you mean `nodes`?",
        ),
        ("racks:\n- {name: a}", 2, "$.racks[0]", "`nodes` is missing", "needed here: `name`, `nodes`"),
        (
            "racks:\n- name: a\n  nodes:\n  - n1\n  - 12",
            5,
            "$.racks[0].nodes[1]",
            "found a whole number",
            '"12"',
        ),
        (
            "racks:\n- {name: a, nodes: n1, connection: loc}",
            2,
            "$.racks[0].connection",
            "unknown value",
            "`local`",
        ),
        (
            "racks:\n- name: a\n  nodes: []",
            3,
            "$.racks[0].nodes",
            "the rack `a` has no nodes",
            "remove the rack",
        ),
        ("racks:\n- name: a\n  nodes: ''", 3, "$.racks[0].nodes", "the node set `` is empty", None),
        (
            "racks:\n- name: a\n  nodes: n[3-1]",
            3,
            "$.racks[0].nodes",
            "bad node set `n[3-1]`",
            "gpu[001-016]",
        ),
        (
            "racks:\n- name: a\n  nodes: n[1-9999999999]",
            3,
            "$.racks[0].nodes",
            "names more than 65536 nodes",
            None,
        ),
        (
            "racks:\n- name: a\n  nodes: n1 n2",
            3,
            "$.racks[0].nodes",
            "`n1 n2` is not a node name",
            "put a comma",
        ),
        (
            "racks:\n- name: a\n  nodes: n1;reboot",
            3,
            "$.racks[0].nodes",
            "is not a node name",
            "a host name or",
        ),
        ("racks:\n- name: a\n  nodes: '@gpus'", 3, "$.racks[0].nodes", "node groups", "write the nodes out"),
        (
            "racks:\n- name: a\n  nodes: n[1-3],n2",
            3,
            "$.racks[0].nodes",
            "names n2 twice",
            "name every node once",
        ),
        (
            "racks:\n- name: a\n  nodes: [n1, n2,\n    n1]",
            4,
            "$.racks[0].nodes[2]",
            "`n1` is written twice, at `$.racks[0].nodes[0]` (line 3) and here",
            "a node stands in one rack, once",
        ),
        (
            "racks:\n- name: a\n  nodes: n[1-3]\n- name: b\n  nodes: n3",
            5,
            "$.racks[1].nodes",
            "`n3` is written twice, at `$.racks[0].nodes` (line 3) and here",
            "a node stands in one rack, once",
        ),
        (
            "racks:\n- name: a\n  nodes: n1\n- name: a\n  nodes: n2",
            4,
            "$.racks[1].name",
            "the rack `a` is written twice, on lines 2 and 4",
            "put its nodes into one entry",
        ),
    ],
)
def test_a_mistake_in_the_racks_is_refused_with_line_field_and_hint(
    refusal: Refusal, text: str, line: int, field: str, message: str, hint: str | None
) -> None:
    error = refusal(text + "\n")

    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert (error.hint is None) if hint is None else (hint in str(error.hint))


@pytest.mark.parametrize(
    ("text", "line", "field", "message", "hint"),
    [
        (
            "addresses:\n  n11: 10.0.0.1",
            5,
            "$.addresses.n11",
            "`n11`, which is in no rack",
            "did you mean `n1`?",
        ),
        ("addresses:\n  login: 10.0.0.1", 5, "$.addresses.login", "in no rack", "the nodes are n[1-2]"),
        ("addresses: {n1: '10.0.0.1/24'}", 4, "$.addresses.n1", "is not an address", "without a port"),
        ("addresses: {n1: 10.0.0.1, n2: 10.0.0.1}", 4, "$.addresses.n2", "the same files", "its own address"),
        ("connection: local", 1, "$.root", "`n1` and `n2` would be the same files", "root: nodes/{node}"),
        ("root: nodes\nconnection: local", 4, "$.root", "would be the same files", "root: nodes/{node}"),
        ("root: nodes/{rack}", 4, "$.root", "only `{node}` is known between braces", None),
        ("root: ~/nodes", 4, "$.root", "`~` is known for local nodes only", "write the path out"),
        ('root: "/a\\nb"', 4, "$.root", "a control character", None),
        (
            "python: ~/venv/bin/python",
            4,
            "$.python",
            "`~` is known for local nodes only",
            "write the path out",
        ),
        ('python: "python3 \'x"', 4, "$.python", "cannot split", None),
        ("python: ' '", 4, "$.python", "expected a command that starts Python", "/opt/venv/bin/python3"),
        (
            "python: source a && python3",
            4,
            "$.python",
            "`source` means something to a shell only",
            "/opt/venv",
        ),
        (
            "python: $HOME/bin/python",
            4,
            "$.python",
            "means something to a shell only",
            "/opt/venv/bin/python3",
        ),
        (
            "as_nodes: 4\nranks_per_node: 2",
            4,
            "$.as_nodes",
            "2 ranks cannot be split into 4 nodes",
            "at most",
        ),
        (
            "env:\n  NCCL_ALGO: Ring\n  NCCL_SOCKET_IFNAM: lo",
            6,
            "$.env.NCCL_SOCKET_IFNAM",
            "is not an NCCL variable",
            "did you mean `NCCL_SOCKET_IFNAME`?",
        ),
        (
            "env: {LD_PRELOAD: x}",
            4,
            "$.env.LD_PRELOAD",
            "is not an NCCL variable",
            "`env LD_PRELOAD=... python3`",
        ),
        ("env: {NCCL_BUFFSIZE: 4M}", 4, "$.env.NCCL_BUFFSIZE", "`4M` would mean 4", "write the number out"),
        (
            "env: {NCCL_MIN_CTAS: 010}",
            4,
            "$.env.NCCL_MIN_CTAS",
            "reads an integer here",
            "write the number out",
        ),
        ("bench: {nodes: n3}", 4, "$.bench.nodes", "`n3` is in no rack", "the nodes are n[1-2]"),
        ("bench: {nodes: login}", 4, "$.bench.nodes", "`login` is in no rack", "the nodes are n[1-2]"),
        ("bench: {nodes: 'n[2-1]'}", 4, "$.bench.nodes", "bad node set", "write ranges as"),
        ("bench: {sizes: []}", 4, "$.bench.sizes", "the list of sizes is empty", "[8K, 128K"),
        ("bench: {sizes: [8K, x]}", 4, "$.bench.sizes[1]", "`x` is not a message size", "write it as `8K`"),
        ("bench: {sizes: [8K, -8]}", 4, "$.bench.sizes[1]", "must be positive: -8", "write it as `8K`"),
        ("bench: {sizes: [0]}", 4, "$.bench.sizes[0]", "must be positive: 0", "write it as `8K`"),
        ("bench: {sizes: [1M, 1024K]}", 4, "$.bench.sizes[1]", "1M is written twice: `1M` and `1024K`", None),
        ("bench: {sizes: 32M..8K}", 4, "$.bench.sizes", "begins above its end", "write `8K..32M`"),
        ("bench: {sizes: 8K..32M x1}", 4, "$.bench.sizes", "never ends", "at least `x2`"),
        ("bench: {sizes: 8K...32M}", 4, "$.bench.sizes", "is not a message size", "write it as `8K`"),
        ("bench: {sizes: [8K], weights: {9K: 1}}", 4, "$.bench.weights.9K", "a weight for 9K", "known: `8K`"),
        ("bench: {sizes: [8K], weights: {8K: 0}}", 4, "$.bench.weights", "every weight is 0", "the weight 1"),
        (
            "bench: {weights: {8K: 1, 8192: 2}}",
            4,
            "$.bench.weights.8192",
            "has two weights: `8K` and `8192`",
            None,
        ),
        ("bench: {weights: {x: 1}}", 4, "$.bench.weights.x", "`x` is not a message size", "write it as `8K`"),
        ("bench: {weights: {}}", 4, "$.bench.weights", "there are no weights", "remove the key"),
        ("bench:\n  backend: replay", 5, "$.bench.backend", "has nothing to replay", "add a block such as"),
        (
            "nccl_tests: {folder: /opt}",
            4,
            "$.nccl_tests",
            "`nccl_tests` does nothing with the back end `nccl`",
            "bench: {backend: nccl-tests}",
        ),
        (
            NCCL_TESTS + "nccl_tests: {folder: build}",
            5,
            "$.nccl_tests.folder",
            "",
            "an absolute path on the nodes",
        ),
        (
            NCCL_TESTS + "nccl_tests:\n  launcher: mpirun -np {rank} ",
            6,
            "$.nccl_tests.launcher",
            "`{rank}` stands for nothing",
            "did you mean `ranks`?",
        ),
        (
            NCCL_TESTS + "nccl_tests:\n  launcher: mpirun -np {} ",
            6,
            "$.nccl_tests.launcher",
            "`{}` stands for nothing",
            "known: `{nodes}`",
        ),
        (
            NCCL_TESTS + 'nccl_tests:\n  launcher: mpirun "-np',
            6,
            "$.nccl_tests.launcher",
            "does not split into words",
            "",
        ),
        (
            NCCL_TESTS + "nccl_tests:\n  arguments: -n 50 -b 8",
            6,
            "$.nccl_tests.arguments",
            "`-b` is not yours to give: it comes from `bench: {sizes: ...}`",
            "leave it out",
        ),
        (
            NCCL_TESTS + "nccl_tests:\n  arguments: --output_file=/tmp/x.json",
            6,
            "$.nccl_tests.arguments",
            "comes from topo-tune, which reads the file",
            "",
        ),
        (
            NCCL_TESTS + "nccl_tests:\n  gpus_per_process: 2",
            6,
            "$.nccl_tests.gpus_per_process",
            "one process drives all GPUs",
            "set `ranks_per_node`, or a `launcher`",
        ),
        (
            NCCL_TESTS + "ranks_per_node: 8\nnccl_tests: {launcher: mpirun, gpus_per_process: 3}",
            6,
            "$.nccl_tests.gpus_per_process",
            "8 ranks a node are no whole number of processes with 3 GPUs each",
            "",
        ),
        (NCCL_TESTS + "as_nodes: 2", 5, "$.as_nodes", "nccl-tests cannot split a host", "remove `as_nodes`"),
        (NCCL_TESTS + "root: /mnt", 5, "$.root", "NCCL reads the real `/etc/nccl.conf`", "remove `root`"),
        (
            "replay: {surface: x}",
            4,
            "$.replay",
            "does nothing with the back end `nccl`",
            "bench: {backend: replay}",
        ),
        ("root: /srv/{node}", 4, "$.root", "NCCL reads the real `/etc/nccl.conf`", "bench: {backend: gloo}"),
        (
            "bench: {backend: replay}\n"
            "replay:\n  surface: x\n  faults:\n  - racks: [rack2]\n    tuned_time_factor: 2",
            8,
            "$.replay.faults[0].racks[0]",
            "there is no rack `rack2`",
            "did you mean `rack1`?",
        ),
        (
            "bench: {backend: replay}\nreplay: {surface: ./x.jsonl}",
            5,
            "$.replay.surface",
            "no such file",
            None,
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused_with_line_field_and_hint(
    refusal: Refusal, text: str, line: int, field: str, message: str, hint: str | None
) -> None:
    error = refusal(ONE_RACK + text + "\n")

    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert (error.hint is None) if hint is None else (hint in str(error.hint))


# -- mistakes of YAML


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (
            ONE_RACK + "name: a\nroot: /\nname: b",
            6,
            "`name` is written twice, on lines 4 and 6",
            "keep one of them",
        ),
        (
            "racks:\n- name: a\n  nodes: n1\n  name: b",
            4,
            "`name` is written twice, on lines 2 and 4",
            "keep one",
        ),
        ("racks:\n\t- name: a", 2, "is not YAML", "YAML indents with spaces; this line holds a tab"),
        ("name: a: b", 1, "is not YAML", "quotes"),
        ("name: `a`\nracks: []", 1, "is not YAML", "quotes"),
        ("racks: [{name: a, nodes: gpu[1-2]}]", 1, "is not YAML", 'put a node set in quotes: "gpu[1-2]"'),
        ("racks:\n- {name: a,\n", 2, "is not YAML", "brackets"),
        ("name: *x\n", 1, "is not YAML", "needs its anchor"),
        (ONE_RACK + "---\n" + ONE_RACK, 4, "is not YAML", "one file describes one cluster"),
        (ONE_RACK + "? [a]\n: b\n", 4, "a key must be text", None),
        (ONE_RACK + "env: !!python/object:os.x {}", 4, "means nothing here", "remove the tag"),
        (ONE_RACK + "env: &x {<<: *x}", 4, "contains itself", None),
        (ONE_RACK + "env: {<<: 1}", 4, "`<<` merges a mapping", None),
        (ONE_RACK + "env: " + "[" * 40 + "]" * 40, 4, "is nested more than 32 levels deep", None),
        ("name: " + "[" * 100_000, 1, "is not YAML", "brackets"),
        ("name: a\x07b", 1, "a character that YAML does not allow", None),
    ],
)
def test_what_is_not_strict_yaml_is_refused_with_its_line(
    refusal: Refusal, text: str, line: int, message: str, hint: str | None
) -> None:
    error = refusal(text)

    assert error.line == line
    assert message in error.message
    assert (error.hint is None) if hint is None else (hint in str(error.hint))


def test_a_yaml_list_of_nodes_is_refused(refusal: Refusal) -> None:
    error = refusal("- gpu1\n- gpu2\n")

    assert "is a YAML list, expected a mapping" in error.message
    assert "put the nodes under `racks:`" in str(error.hint)


def test_a_yaml_list_of_racks_is_refused(refusal: Refusal) -> None:
    error = refusal("- name: a\n  nodes: n1\n")

    assert "expected a mapping, found a list" in error.message


@pytest.mark.parametrize("kind", ["lists", "merges"])
def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(refusal: Refusal, kind: str) -> None:
    opening, closing, first = {"lists": ("[", "]", "[1]"), "merges": ("{<<: [", "]}", "{x: 1}")}[kind]
    levels = [f"a{n}: &a{n} {opening}{', '.join([f'*a{n - 1}'] * 10)}{closing}\n" for n in range(1, 20)]
    start = time.process_time()

    error = refusal(f"a0: &a0 {first}\n" + "".join(levels))

    assert "expands to more than 200000 values" in error.message
    assert time.process_time() - start < 5


# -- files that cannot be read


def test_an_empty_file_is_refused_with_the_way_to_begin(refusal: Refusal) -> None:
    error = refusal("# nothing yet\n\n")

    assert "is empty" in error.message
    assert "racks:" in str(error.hint)


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(ONE_RACK)

    with pytest.raises(InputError, match="no such file") as caught:
        read_inventory(tmp_path / "clutser.yaml")

    assert caught.value.hint == f"did you mean `{tmp_path / 'cluster.yaml'}`?"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_inventory(tmp_path / "nowhere" / "cluster.yaml")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        read_inventory(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(ONE_RACK)
    path.chmod(0)

    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_inventory(path)


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(ONE_RACK)

    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        read_inventory(tmp_path / "lab.yaml" / "x")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00", "is not text"),
        (b"racks:\n- name: \xff\xfe\n", "is not UTF-8 text"),
        ("racks: []\n".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_a_binary_file_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_bytes(raw)

    with pytest.raises(InputError, match=message):
        read_inventory(path)


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="is larger than 16 MiB"):
        read_inventory(Path("/dev/zero"))
