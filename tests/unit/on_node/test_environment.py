"""A rank's environment: Python's view of it, and what NCCL itself sees."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from topo_tune.on_node.environment import VariantEnvironment, settings_in_force


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=tree\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setenv("NCCL_PROTO", "LL")
    for name in ("NCCL_ALGO", "NCCL_MIN_CTAS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_variable_of_a_variant_is_gone_behind_it() -> None:
    environment = VariantEnvironment()

    environment.apply({"NCCL_MIN_CTAS": "4"})
    during = settings_in_force().get("NCCL_MIN_CTAS")
    environment.apply({})

    assert (during, settings_in_force().get("NCCL_MIN_CTAS")) == ("4", None)


def test_a_variable_of_the_process_is_back_behind_a_variant() -> None:
    environment = VariantEnvironment()

    environment.apply({"NCCL_PROTO": "Simple"})
    environment.apply({})

    assert settings_in_force()["NCCL_PROTO"] == "LL"


def test_a_line_of_nccls_file_is_back_behind_a_variant_as_if_nccl_had_put_it_there() -> None:
    environment = VariantEnvironment()

    environment.apply({"NCCL_ALGO": "ring"})
    environment.apply({})

    assert settings_in_force()["NCCL_ALGO"] == "tree"


def test_what_the_process_has_by_itself_is_told_apart_from_what_is_left_over() -> None:
    environment = VariantEnvironment()

    environment.apply({"NCCL_PROTO": "LL", "NCCL_ALGO": "tree", "NCCL_MIN_CTAS": "4"})
    environment.apply({})

    assert environment.back == {"NCCL_PROTO": "LL", "NCCL_ALGO": "tree"}


def test_what_a_library_puts_into_the_environment_is_seen() -> None:
    ctypes.CDLL(None).setenv(b"NCCL_MIN_CTAS", b"7", 1)

    assert "NCCL_MIN_CTAS" not in os.environ
    assert settings_in_force()["NCCL_MIN_CTAS"] == "7"

    ctypes.CDLL(None).unsetenv(b"NCCL_MIN_CTAS")


def test_secrets_and_other_peoples_variables_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PSK", "secret")
    monkeypatch.setenv("PASSWORD", "secret")

    found = settings_in_force()

    assert found["NCCL_PSK"] == "(not kept)"
    assert "secret" not in found.values()
    assert all(name.startswith("NCCL_") for name in found)
