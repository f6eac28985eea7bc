"""Where to log in: the inventory first, then ssh_config."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from topo_tune.connect.login import Login, read_ssh_config, resolve, resolve_jump
from topo_tune.errors import InputError
from topo_tune.records.inventory import SshOptions


def nothing(host: str) -> dict[str, str]:
    return {}


@pytest.fixture
def ssh_config(tmp_path: Path) -> Path:
    (tmp_path / "id").write_text("")
    path = tmp_path / "config"
    path.write_text(
        "Host n1\n"
        "  HostName n1.cluster.example\n"
        "  User operator\n"
        "  Port 2222\n"
        f"  IdentityFile {tmp_path}/absent\n"
        f"  IdentityFile {tmp_path}/id\n"
        "  ProxyJump gate\n"
        "Host gate\n"
        "  User gatekeeper\n"
        "  ProxyJump none\n"
        "Host far\n"
        "  ProxyJump one,two\n"
    )
    return path


def test_without_any_configuration_the_local_user_logs_in_at_port_22() -> None:
    assert resolve("n1", SshOptions(), nothing) == Login("n1", 22, getpass.getuser())


def test_ssh_config_completes_what_the_inventory_leaves_out(ssh_config: Path, tmp_path: Path) -> None:
    login = resolve("n1", SshOptions(), read_ssh_config(ssh_config))

    assert login == Login("n1.cluster.example", 2222, "operator", identity=str(tmp_path / "id"), jump="gate")
    assert login.place == "operator@n1.cluster.example:2222"


def test_the_inventory_wins_over_ssh_config(ssh_config: Path) -> None:
    options = SshOptions(user="me", port=2200, identity="/key", jump="other")

    login = resolve("n1", options, read_ssh_config(ssh_config))

    assert login == Login(
        "n1.cluster.example", 2200, "me", identity="/key", is_only_identity=True, jump="other"
    )


def test_a_chain_of_jump_hosts_is_refused(ssh_config: Path) -> None:
    with pytest.raises(InputError, match="several jump hosts"):
        resolve("far", SshOptions(), read_ssh_config(ssh_config))


@pytest.mark.parametrize(
    ("text", "host", "port", "user"),
    [
        ("gate", "gate", 22, "gatekeeper"),
        ("me@gate:2222", "gate", 2222, "me"),
        ("me@[fe80::1]:2222", "fe80::1", 2222, "me"),
        ("me@[fe80::1]", "fe80::1", 22, "me"),
    ],
)
def test_a_jump_host_has_its_own_user_and_port_and_the_same_key(
    ssh_config: Path, text: str, host: str, port: int, user: str
) -> None:
    options = SshOptions(user="node-user", port=2200, identity="/key", jump=text)

    login = resolve_jump(text, options, read_ssh_config(ssh_config))

    assert login == Login(host, port, user, identity="/key", is_only_identity=True)


@pytest.mark.parametrize("text", ["", "me@", "gate:ssh", "gate:"])
def test_a_jump_host_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a jump host"):
        resolve_jump(text, SshOptions(), nothing)


def test_an_absent_ssh_config_says_nothing(tmp_path: Path) -> None:
    assert read_ssh_config(tmp_path / "absent")("n1") == {}


def test_a_broken_ssh_config_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host n1\n  nonsense\n")

    with pytest.raises(InputError, match="cannot read the ssh configuration"):
        read_ssh_config(tmp_path / "config")


def test_an_option_that_is_not_supported_is_refused_when_a_host_needs_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  CanonicalizeHostname yes\n  CanonicalizeFallbackLocal no\n")
    look_up = read_ssh_config(tmp_path / "config")

    with pytest.raises(InputError, match="not supported"):
        look_up("no-such-host.invalid")
