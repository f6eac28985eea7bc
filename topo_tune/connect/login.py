"""Where to log in and as whom: the inventory's `ssh:` section, completed from the user's ssh_config.

The inventory wins wherever it says something. Read from `~/.ssh/config` for what it leaves out: HostName,
User, Port, IdentityFile (the first that exists) and ProxyJump. paramiko does the parsing, so `Include` is not
followed and `Match exec` and `CanonicalizeHostname` are refused; a site that needs them writes the values
into the inventory.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from topo_tune.connect.known_hosts import SSH_PORT
from topo_tune.errors import InputError
from topo_tune.records.inventory import SshOptions

Lookup = Callable[[str], Mapping[str, Any]]
"""host as the user writes it -> its options in ssh_config, names in lower case"""

USUAL_CONFIG = Path("~/.ssh/config")


class Login(msgspec.Struct, frozen=True):
    """One SSH login, fully resolved."""

    host: str
    port: int
    user: str
    identity: str | None = None
    """private key file; None: the agent, then the usual key files"""
    is_only_identity: bool = False
    """the inventory named it, so no other key is offered"""
    jump: str | None = None

    @property
    def place(self) -> str:
        """`user@host:port`."""
        return f"{self.user}@{self.host}:{self.port}"


def read_ssh_config(path: Path | None = None) -> Lookup:
    """The lookup of an ssh_config file, `~/.ssh/config` by default; an absent file has no options.

    Raises InputError for a file that cannot be parsed; the lookup does for an option that is not supported.
    """
    import paramiko

    file = (path or USUAL_CONFIG).expanduser()
    if not file.is_file():
        return lambda host: {}
    try:
        config = paramiko.SSHConfig.from_path(str(file))
    except (OSError, ValueError, paramiko.SSHException) as exc:
        raise InputError(f"cannot read the ssh configuration: {exc}", file=str(file)) from exc

    def look_up(host: str) -> Mapping[str, Any]:
        try:
            return config.lookup(host)
        # ImportError: `Match exec` needs a package that paramiko does not always bring
        except (ValueError, KeyError, ImportError, OSError, paramiko.SSHException) as exc:
            raise InputError(
                f"cannot read the options of `{host}`: {exc}",
                file=str(file),
                hint="`Match exec` and `CanonicalizeHostname` are not supported; "
                "write user, port, identity and jump into the cluster file's `ssh:` section",
            ) from exc

    return look_up


def resolve(address: str, options: SshOptions, look_up: Lookup) -> Login:
    """The login of a node. Raises InputError for a chain of several jump hosts."""
    configured = look_up(address)
    port = options.port if options.port != SSH_PORT else int(configured.get("port", SSH_PORT))
    jump = options.jump if options.jump is not None else configured.get("proxyjump")
    jump = None if jump in (None, "", "none") else str(jump)
    if jump is not None and "," in jump:
        raise InputError(
            f"`{address}` is reached over several jump hosts: `{jump}`",
            field="ssh.jump",
            hint="one jump host is supported; name the last one, and start topo-tune where it can be reached",
        )
    return Login(
        host=str(configured.get("hostname", address)),
        port=port,
        user=options.user or str(configured.get("user", "")) or getpass.getuser(),
        identity=options.identity or _first_existing(configured.get("identityfile", ())),
        is_only_identity=options.identity is not None,
        jump=jump,
    )


def resolve_jump(jump: str, options: SshOptions, look_up: Lookup) -> Login:
    """The login of a jump host `[user@]host[:port]`, with the inventory's key.

    Its user is never the nodes' user: as with ssh, it comes from the text, from ssh_config or is the local
    one. Raises InputError for a text of another shape.
    """
    user, _, rest = jump.rpartition("@")
    host, port = _host_and_port(rest)
    if not host or (port is not None and not port.isdecimal()):
        raise InputError(
            f"not a jump host: `{jump}`",
            field="ssh.jump",
            hint="write it as `[user@]host[:port]`, IPv6 in brackets",
        )
    asked = msgspec.structs.replace(options, user=user or None, port=int(port or SSH_PORT), jump="none")
    return resolve(host, asked, look_up)


def _host_and_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port[1:] if port.startswith(":") else None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _first_existing(paths: list[str] | tuple[str, ...]) -> str | None:
    return next((path for path in paths if Path(path).expanduser().is_file()), None)
