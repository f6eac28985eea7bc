"""Clusters that were searched once, and are copied for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_demo import FAULT_IN_RACK_2, QUICK, TWO_RACKS, Demo, copied, make_demo


@pytest.fixture(scope="session")
def searched_with_fault(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    demo = make_demo(tmp_path_factory.mktemp("with-fault"), FAULT_IN_RACK_2)
    assert demo.init(*QUICK) == 0
    return demo


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    demo = make_demo(tmp_path_factory.mktemp("sound"), TWO_RACKS)
    assert demo.init(*QUICK) == 0
    return demo


@pytest.fixture
def faulty(searched_with_fault: Demo, tmp_path: Path) -> Demo:
    """Two racks, of which the second has a fault; a change is recommended."""
    return copied(searched_with_fault, tmp_path / "demo")


@pytest.fixture
def sound(searched: Demo, tmp_path: Path) -> Demo:
    """Two racks without a fault; a change is recommended."""
    return copied(searched, tmp_path / "demo")
