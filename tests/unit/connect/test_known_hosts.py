"""The known_hosts reader, on texts."""

from __future__ import annotations

import base64
import hmac
import time
from pathlib import Path

import pytest

from topo_tune.connect.known_hosts import HostKey, KnownHosts
from topo_tune.errors import InputError


def key(letter: str, key_type: str = "ssh-ed25519") -> HostKey:
    name = key_type.encode()
    return HostKey(key_type, len(name).to_bytes(4, "big") + name + letter.encode() * 32)


def line(hosts: str, of: HostKey, comment: str = "") -> str:
    return f"{hosts} {of.type} {base64.b64encode(of.blob).decode()} {comment}\n"


def hashed(host: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, host.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def known(*lines: str) -> KnownHosts:
    hosts = KnownHosts()
    hosts.add_text("".join(lines))
    return hosts


A, B, RSA = key("a"), key("b"), key("r", "ssh-rsa")


@pytest.mark.parametrize(
    ("hosts", "name", "port"),
    [
        ("n1", "n1", 22),
        ("n1", "N1", 22),
        ("n1,10.0.0.1", "10.0.0.1", 22),
        ("[n1]:2222", "n1", 2222),
        ("[n1]:22", "n1", 22),
        ("n1", "n1", 2222),
        ("10.0.0.*", "10.0.0.17", 22),
        ("gpu???,!gpu007", "gpu001", 22),
        ("[*.cluster]:2222", "a.cluster", 2222),
        (hashed("n1"), "n1", 22),
        (hashed("[n1]:2222"), "n1", 2222),
    ],
)
def test_a_listed_host_has_its_key(hosts: str, name: str, port: int) -> None:
    assert known(line(hosts, A)).keys_of(name, port).accepts(A)


@pytest.mark.parametrize(
    ("hosts", "name", "port"),
    [
        ("n1", "n11", 22),
        ("[n1]:2222", "n1", 22),
        ("[n1]:2222", "n1", 2223),
        ("10.0.0.*", "10.0.1.1", 22),
        ("gpu???,!gpu007", "gpu007", 22),
        (hashed("n1"), "n2", 22),
    ],
)
def test_a_host_that_is_not_listed_has_no_key(hosts: str, name: str, port: int) -> None:
    assert known(line(hosts, A)).keys_of(name, port).trusted == ()


def test_all_keys_of_a_host_are_trusted_and_no_other() -> None:
    keys = known(line("n1", A), line("n1", RSA), line("n2", B)).keys_of("n1")

    assert keys.trusted == (A, RSA)
    assert not keys.accepts(B)


def test_a_key_of_the_port_itself_beats_that_of_the_bare_name() -> None:
    assert known(line("n1", A), line("[n1]:2222", B)).keys_of("n1", 2222).trusted == (B,)


@pytest.mark.parametrize("hosts", ["n1", "*"])
def test_a_revoked_key_is_not_accepted_even_when_it_is_listed(hosts: str) -> None:
    keys = known(line("n1", A), line("n1", B), "@revoked " + line(hosts, A)).keys_of("n1")

    assert not keys.accepts(A)
    assert keys.accepts(B)


def test_a_key_revoked_for_another_host_stays_accepted() -> None:
    assert known(line("n1", A), "@revoked " + line("n2", A)).keys_of("n1").accepts(A)


def test_lines_that_cannot_be_used_become_notes_and_the_others_load() -> None:
    hosts = known(
        "# a comment\n",
        "\n",
        "@cert-authority " + line("*", A),
        "@strange " + line("n1", A),
        "n1 ssh-ed25519\n",
        "n1 ssh-ed25519 not!base64\n",
        "n1 ssh-rsa " + line("", A).split()[1] + "\n",
        "|1|x|y ssh-ed25519 " + line("", A).split()[1] + "\n",
        line("n1", B, comment="the good one"),
    )

    assert hosts.keys_of("n1").trusted == (B,)
    assert [note.split(": ", 1)[0] for note in hosts.notes] == [f"known_hosts:{n}" for n in range(3, 9)]
    assert "host certificates are not supported" in hosts.notes[0]


def test_the_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ssh-keyscan"):
        KnownHosts.read(str(tmp_path / "absent"))


def test_the_usual_files_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_tune.connect.known_hosts.USUAL_FILES", (tmp_path / "absent",))

    assert KnownHosts.read().keys_of("n1").trusted == ()


def test_a_file_for_a_thousand_hosts_is_read_in_less_than_half_a_second(tmp_path: Path) -> None:
    lines = [line(f"n{n}", k) for n in range(1024) for k in (A, B, RSA)]
    (tmp_path / "known_hosts").write_text("".join(lines))
    began = time.process_time()

    hosts = KnownHosts.read(str(tmp_path / "known_hosts"))
    found = [hosts.keys_of(f"n{n}") for n in range(1024)]

    assert time.process_time() - began < 0.5
    assert all(keys.trusted == (A, B, RSA) for keys in found)
