"""A run folder: the journey as files, each stage able to start from the file before it."""

from __future__ import annotations

from pathlib import Path

from topo_tune.errors import BrokenRecord, InputError, Refused
from topo_tune.records.envelope import load, save, writing
from topo_tune.records.inventory import Inventory
from topo_tune.records.scan import Scan

_HEAD_FILE = "00-inventory.json"


class RunFolder:
    """Paths of one run. `create` makes it, `open` finds it again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inventory = path / _HEAD_FILE
        self.scan = path / "10-scan.json"
        self.topology = path / "20-topology.json"
        self.plan = path / "25-bench-plan.json"
        self.launches = path / "30-bench.jsonl"
        self.search = path / "40-search.json"
        self.recommendation = path / "50-recommendation.json"
        self.fragment = path / "50-topo-tune.conf"
        self.snippets = path / "50-launchers.md"
        self.journal = path / "60-journal.jsonl"
        self.guard = path / "61-guard.jsonl"
        self.proofs = path / "62-proofs.jsonl"

    @classmethod
    def create(cls, path: Path, inventory: Inventory) -> RunFolder:
        """A new run folder, or the one of an interrupted run of the same inventory.

        Raises Refused when the folder holds something else, so that nothing is mixed or overwritten, and InputError
        when it cannot be made.
        """
        folder = cls(path)
        with writing(path):  # of a path that may not even be looked at, too
            is_begun = folder.inventory.exists()
            is_free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if is_begun:
            if load(folder.inventory, Inventory) != inventory:
                raise Refused(
                    f"{path} holds a run of another inventory",
                    hint="choose another --output, or the cluster file that run was made from",
                )
            return folder
        if not is_free:
            raise Refused(f"{path} exists and is not a run folder", hint="choose another --output")
        save(folder.inventory, inventory)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run folder. Raises InputError when there is none at that path."""
        folder = cls(path)
        if not folder.inventory.exists():
            raise InputError(
                f"{path} is not a run folder: it has no {_HEAD_FILE}",
                hint="`topo-tune init --cluster-config FILE --output DIR` makes one",
            )
        return folder

    @property
    def lock(self) -> Path:
        """What whoever measures into this folder holds alone; it tells nothing of the journey."""
        return self.path / ".run.lock"

    def need(self, path: Path, stage: str) -> Path:
        """A file of an earlier stage. Raises BrokenRecord naming the stage that makes it."""
        if not path.exists():
            raise BrokenRecord(f"{self.path} has no {path.name} yet", hint=f"`topo-tune {stage}` makes it")
        return path


def scan_record(path: Path) -> Scan:
    """The scan in a record file, or in a run folder. Raises InputError where there is none."""
    file = RunFolder(path).scan if path.is_dir() else path
    hint = "`topo-tune scan --output FILE` writes one; with `--from PATH`, of a folder of saved dumps"
    if not file.exists():
        raise InputError(f"{path} holds no scan record", hint=hint)
    try:
        return load(file, Scan)
    except BrokenRecord as exc:
        raise InputError(f"no scan record: {exc.message}", hint=hint) from exc
