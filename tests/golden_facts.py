"""The golden texts of facts, and what is expected of them in a form that is easy to read in a diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import NcclFile

FACTS = Path(__file__).parent / "golden" / "facts"
MATRICES = sorted((FACTS / "smi-topo").glob("*.txt"))
CONF_FILES = sorted(file for file in (FACTS / "nccl-conf").iterdir() if file.suffix != ".json")

SHARED = Path(__file__).parents[2] / "shared" / "fixtures"
"""More files from real machines, where they lie beside the repository; else the golden ones stand in."""


def beside_the_repository(kind: str) -> list[Path]:
    """Every file of this kind from beside the repository, or the golden ones; the kind `.` is all of them."""
    files = [file for file in (SHARED / kind).rglob("*") if file.is_file()]
    own = {"smi-topo": MATRICES, "config": CONF_FILES, ".": every_golden_text()}
    return sorted(files) or own[kind]


def every_golden_text() -> list[Path]:
    """Every text in the repository, without what is expected of it."""
    files = (file for file in sorted(FACTS.rglob("*")) if file.is_file() and file.name != "SOURCES.md")
    return [file for file in files if not (file.suffix == ".json" and file.with_suffix("").exists())]


def text_of(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")


def expected(file: Path) -> Any:
    return json.loads(file.with_name(file.name + ".json").read_text())


def shown_matrix(matrix: TopologyMatrix) -> dict[str, Any]:
    return {
        "gpus": " ".join(matrix.gpus),
        "nics": " ".join(matrix.nics),
        "links": [" ".join(row) for row in matrix.links],
        "cpu_affinity": list(matrix.cpu_affinity),
        "numa_affinity": list(matrix.numa_affinity),
        "gpu_numa_ids": list(matrix.gpu_numa_ids),
        "problems": list(matrix.problems),
    }


def shown_conf(file: NcclFile) -> dict[str, Any]:
    return {
        "settings": [f"{setting.line}: {setting.name}={setting.value}" for setting in file.settings],
        "problems": list(file.problems),
    }
