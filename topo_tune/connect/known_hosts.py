"""known_hosts files, read once: which keys a host may show, and which it must not.

paramiko's own reader takes time quadratic in the number of lines, never matches wildcards or `[host]:22`, and
loads nothing at all from a file with one `@revoked` line. This one follows sshd(8), SSH_KNOWN_HOSTS FILE
FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from topo_tune.errors import InputError

SSH_PORT = 22

USUAL_FILES = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))


class HostKey(msgspec.Struct, frozen=True):
    """One public key: its type and its wire form."""

    type: str
    """`ssh-ed25519`, `ssh-rsa`, ..."""
    blob: bytes


class HostKeys(msgspec.Struct, frozen=True):
    """What the files say about one host."""

    trusted: tuple[HostKey, ...] = ()
    revoked: tuple[HostKey, ...] = ()

    def accepts(self, key: HostKey) -> bool:
        """Whether this key is listed for the host and not revoked."""
        return key in self.trusted and key not in self.revoked


class _Pattern(msgspec.Struct, frozen=True):
    """The host field of a line with wildcards or negations."""

    wanted: tuple[re.Pattern[str], ...]
    unwanted: tuple[re.Pattern[str], ...]

    def matches(self, name: str) -> bool:
        return any(p.fullmatch(name) for p in self.wanted) and not any(
            p.fullmatch(name) for p in self.unwanted
        )


class _Line(msgspec.Struct, frozen=True):
    key: HostKey
    is_revoked: bool


class KnownHosts:
    """Every usable line of some known_hosts files; `notes` says which lines were not usable, and why."""

    def __init__(self) -> None:
        self._plain: dict[str, list[_Line]] = {}
        self._hashed: list[tuple[bytes, bytes, _Line]] = []
        self._patterns: list[tuple[_Pattern, _Line]] = []
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that were left out: `file:line: reason`."""
        return tuple(self._notes)

    @classmethod
    def read(cls, named: str | None = None) -> KnownHosts:
        """Read the named file, or the usual ones, of which any may be missing.

        Raises InputError when the named file cannot be read.
        """
        known = cls()
        for path in USUAL_FILES if named is None else (Path(named),):
            try:
                text = path.expanduser().read_text(encoding="utf-8", errors="replace")
            except OSError as exc:
                if named is None:
                    continue
                raise InputError(
                    f"cannot read the known hosts: {exc.strerror}",
                    file=named,
                    field="ssh.known_hosts",
                    hint="collect the host keys with `ssh-keyscan` and check them before you trust them",
                ) from exc
            known.add_text(text, str(path))
        return known

    def add_text(self, text: str, source: str = "known_hosts") -> None:
        """Add the lines of a file; broken ones become notes."""
        for number, line in enumerate(text.splitlines(), start=1):
            problem = self._add_line(line.strip())
            if problem is not None:
                self._notes.append(f"{source}:{number}: {problem}")

    def keys_of(self, host: str, port: int = SSH_PORT) -> HostKeys:
        """The keys of a host; on another port those of `[host]:port`, and only without any of those the bare
        host's.

        The fallback is OpenSSH's (sshconnect.c, check_host_key).
        """
        bare = host.lower()
        bracketed = f"[{bare}]:{port}"
        if port == SSH_PORT:
            return _sorted([*self._lines_of(bare), *self._lines_of(bracketed)])
        exact = _sorted(self._lines_of(bracketed))
        if exact.trusted:
            return exact
        loose = _sorted(self._lines_of(bare))
        return HostKeys(loose.trusted, (*exact.revoked, *loose.revoked))

    def _lines_of(self, name: str) -> Iterable[_Line]:
        yield from self._plain.get(name, ())
        encoded = name.encode()
        for salt, digest, line in self._hashed:
            if hmac.compare_digest(hmac.digest(salt, encoded, "sha1"), digest):
                yield line
        for pattern, line in self._patterns:
            if pattern.matches(name):
                yield line

    def _add_line(self, text: str) -> str | None:
        """Take one line in; returns what is wrong with it, or None."""
        if not text or text.startswith("#"):
            return None
        fields = text.split()
        marker = fields.pop(0) if fields[0].startswith("@") else None
        if marker == "@cert-authority":
            return "host certificates are not supported; the line was skipped"
        if marker not in (None, "@revoked"):
            return f"unknown marker `{marker}`; the line was skipped"
        if len(fields) < 3:
            return "expected `hosts keytype key`; the line was skipped"
        hosts, key_type, encoded = fields[:3]
        blob = _decoded(encoded)
        if blob is None or not _is_of_type(blob, key_type):
            return f"not a `{key_type}` key in base64; the line was skipped"
        return self._file(hosts, _Line(HostKey(key_type, blob), is_revoked=marker == "@revoked"))

    def _file(self, hosts: str, line: _Line) -> str | None:
        if hosts.startswith("|"):
            parts = hosts.split("|")
            salt, digest = (_decoded(p) for p in parts[2:4]) if len(parts) == 4 else (None, None)
            if parts[1] != "1" or not salt or not digest:
                return "not a `|1|salt|hash` host name; the line was skipped"
            self._hashed.append((salt, digest, line))
            return None
        names = [name.lower() for name in hosts.split(",") if name]
        if any(set("*?!") & set(name) for name in names):
            unwanted = tuple(_wildcard(name[1:]) for name in names if name.startswith("!"))
            wanted = tuple(_wildcard(name) for name in names if not name.startswith("!"))
            self._patterns.append((_Pattern(wanted, unwanted), line))
        else:
            for name in names:
                self._plain.setdefault(name, []).append(line)
        return None


def _sorted(lines: Iterable[_Line]) -> HostKeys:
    lines = list(lines)
    return HostKeys(
        trusted=tuple(line.key for line in lines if not line.is_revoked),
        revoked=tuple(line.key for line in lines if line.is_revoked),
    )


def _wildcard(pattern: str) -> re.Pattern[str]:
    """`*` and `?` only: brackets belong to `[host]:port` here, which is why fnmatch would be wrong."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_of_type(blob: bytes, key_type: str) -> bool:
    """A wire form begins with its own type as a length-prefixed string (RFC 4253, section 6.6)."""
    name = key_type.encode()
    return blob.startswith(len(name).to_bytes(4, "big") + name)
