"""Real OpenSSH servers on loopback addresses: a small cluster for tests.

Each server has an address, a host key and a configuration of its own; all of them share one port, one
authorized key and one known_hosts file, and run as the user who runs the tests.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topo_tune.connect.ssh import SshAccess, SshConnection
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions

FIRST_ADDRESS = 11
READY_SECONDS = 10.0


@dataclass
class SshCluster:
    """Running servers, and everything that is needed to log in to them."""

    folder: Path
    addresses: tuple[str, ...]
    port: int
    key: Path
    known_hosts: Path
    user: str
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def options(self, **changes: Any) -> SshOptions:
        """SshOptions that log in; `changes` replaces fields."""
        usual: dict[str, Any] = {
            "user": self.user,
            "port": self.port,
            "identity": str(self.key),
            "known_hosts": str(self.known_hosts),
        }
        return SshOptions(**{**usual, **changes})

    def node(self, index: int = 0, **changes: Any) -> Node:
        """The node of server `index`: `n1` is the first."""
        usual: dict[str, Any] = {
            "name": f"n{index + 1}",
            "rack": "r1",
            "address": self.addresses[index],
            "connection": ConnectionKind.SSH,
            "python": (sys.executable,),
        }
        return Node(**{**usual, **changes})

    def nodes(self) -> tuple[Node, ...]:
        """A node for every server."""
        return tuple(self.node(index) for index in range(len(self.addresses)))

    def inventory(self, *, racks: int = 1, backend: BackendName = BackendName.GLOO, **ssh: Any) -> Inventory:
        """All servers, dealt out to racks `r1`, `r2`, ... in turn."""
        names = [f"r{number + 1}" for number in range(racks)]
        return Inventory(
            name="loopback",
            racks=tuple(
                Rack(name, tuple(self.node(i, rack=name) for i in range(number, len(self.addresses), racks)))
                for number, name in enumerate(names)
            ),
            ssh=self.options(**ssh),
            backend=backend,
        )

    def access(self, **changes: Any) -> SshAccess:
        """What connections share, with no ssh_config behind it."""
        return SshAccess(self.options(**changes), ssh_config=self.folder / "no-ssh-config")

    def connection(self, index: int = 0, **changes: Any) -> SshConnection:
        """A connection to server `index`, not logged in yet."""
        return SshConnection(self.node(index), self.access(**changes))

    def stop(self) -> None:
        """End the servers, each by its own process."""
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(5)


def start_cluster(folder: Path, count: int, *, extra_configuration: str = "") -> SshCluster:
    """Start `count` servers on 127.0.0.11 and the following addresses. Fails where there is no sshd.

    Each has an ed25519 host key, which known_hosts lists, and an ECDSA one, which it does not.
    """
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/sbin")
    assert sshd is not None, "sshd is not installed; these tests need OpenSSH's server"
    _make_privilege_separation_directory()
    addresses = tuple(f"127.0.0.{FIRST_ADDRESS + index}" for index in range(count))
    cluster = SshCluster(
        folder=folder,
        addresses=addresses,
        port=_free_port(addresses[0]),
        key=make_key(folder / "user_key"),
        known_hosts=folder / "known_hosts",
        user=getpass.getuser(),
    )
    (folder / "authorized_keys").write_bytes((folder / "user_key.pub").read_bytes())
    lines = []
    for address in addresses:
        make_key(folder / f"host_key_{address}")
        make_key(folder / f"ecdsa_host_key_{address}", key_type="ecdsa")
        key_type, blob = (folder / f"host_key_{address}.pub").read_text().split()[:2]
        lines.append(f"[{address}]:{cluster.port} {key_type} {blob}\n")
    cluster.known_hosts.write_text("".join(lines))
    try:
        for address in addresses:
            cluster.servers.append(_start_server(sshd, cluster, address, extra_configuration))
        for address in addresses:
            _wait_until_ready(address, cluster.port)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def make_key(path: Path, passphrase: str = "", key_type: str = "ed25519") -> Path:
    """A new key pair; the path of its private half."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", key_type, "-N", passphrase, "-C", "test", "-f", str(path)], check=True
    )
    return path


def _start_server(
    sshd: str, cluster: SshCluster, address: str, extra_configuration: str
) -> subprocess.Popen[bytes]:
    config = cluster.folder / f"sshd_config_{address}"
    # of an option given twice sshd takes the first
    config.write_text(
        f"""\
{extra_configuration}
ListenAddress {address}
Port {cluster.port}
HostKey {cluster.folder}/host_key_{address}
HostKey {cluster.folder}/ecdsa_host_key_{address}
PidFile {cluster.folder}/sshd_{address}.pid
AuthorizedKeysFile {cluster.folder}/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
MaxStartups 4096
MaxSessions 200
LogLevel ERROR
"""
    )
    log = cluster.folder / f"sshd_{address}.log"
    # absolute paths throughout: sshd runs itself again for every connection
    return subprocess.Popen([sshd, "-D", "-f", str(config), "-E", str(log)], stdin=subprocess.DEVNULL)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(address: str, port: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            with socket.create_connection((address, port), timeout=1.0) as probe:
                if probe.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        assert time.monotonic() < until, f"the sshd on {address}:{port} did not answer"
        time.sleep(0.02)


def _make_privilege_separation_directory() -> None:
    """sshd insists on it when it runs as root; packages make it only when the service starts."""
    directory = Path("/run/sshd")
    if getpass.getuser() == "root":
        directory.mkdir(mode=0o755, exist_ok=True)
