from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.errors import InputError, Refused
from topo_tune.records.lock import held_alone


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".run.lock"

    with held_alone(path), pytest.raises(Refused, match=f"another topo-tune works in {path.parent}"):
        held_alone(path).__enter__()

    with held_alone(path):
        pass


def test_a_lock_that_cannot_be_made_is_told_with_its_path() -> None:
    with pytest.raises(InputError, match=r"cannot write /proc/nowhere/\.run\.lock"):
        held_alone(Path("/proc/nowhere/.run.lock")).__enter__()
