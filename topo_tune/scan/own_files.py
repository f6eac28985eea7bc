"""topo-tune's own files among the saved ones: a scan is read back, everything else is refused by its name."""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

from topo_tune.errors import BrokenRecord, InputError
from topo_tune.records.envelope import decode
from topo_tune.records.scan import Scan

_BEGINNING = 2000
"""Characters in which a record's head stands."""

_SCHEMA = re.compile(r"\{\s*\"head\":\s*\{\s*\"schema\":\s*\"(topo-tune/[a-z-]{1,40})\"")
_BARE_SCAN = re.compile(r"\{\s*\"cluster\":\s*\"[^\"]{0,300}\",\s*\"nodes\":")
"""What `topo-tune scan --json` prints."""

_CLUSTER_FILE = re.compile(r"^racks:[ \t]*$", re.M)
_LAUNCHERS = "# The settings, as launchers take them"
_LOCK = re.compile(r"\..*\.lock")


SCAN_OF_RUN = "10-scan.json"
"""The file of a run folder that holds its scan."""


def is_run_folder(names: list[str]) -> bool:
    """Whether a folder with files of these names is a run folder that has its scan."""
    return "00-inventory.json" in names and SCAN_OF_RUN in names


def saved_scan(text: str, name: str) -> Scan | None:
    """The scan that a record holds, without its findings: rules judge it anew. None for what is not topo-tune's.

    Raises InputError for a file of topo-tune that is no scan, with what to give instead, and for a damaged record.
    """
    beginning = text[:_BEGINNING].lstrip()
    record = _SCHEMA.match(beginning)
    if record is not None:
        if record.group(1) != "topo-tune/scan":
            raise InputError(
                f"not read: topo-tune's own record `{record.group(1)}`, which is no scan;"
                f" its run folder has one in `{SCAN_OF_RUN}`"
            )
        return _without_findings(_record(text, name))
    if _BARE_SCAN.match(beginning):
        try:
            return _without_findings(msgspec.json.decode(text, type=Scan))
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise InputError(f"not read: a damaged scan of topo-tune: {exc}") from exc
    _refuse_others(beginning, text, name)
    return None


def _record(text: str, name: str) -> Scan:
    try:
        return decode(text.encode(), Scan, name)
    except BrokenRecord as exc:
        raise InputError(f"not read: {exc.message.removeprefix(f'{name}: ')}") from exc
    except RecursionError as exc:
        raise InputError(f"not read: a damaged scan of topo-tune: {exc}") from exc


def _without_findings(scan: Scan) -> Scan:
    return msgspec.structs.replace(scan, findings=())


def _refuse_others(beginning: str, text: str, name: str) -> None:
    if beginning.startswith(_LAUNCHERS):
        raise InputError("not read: topo-tune's own snippets for launchers: `topo-tune lint` checks them")
    if _CLUSTER_FILE.search(beginning) and "nodes:" in beginning:
        raise InputError("not read: topo-tune's own cluster file: give it to `--cluster-config`")
    if not text.strip() and _LOCK.fullmatch(PurePath(name).name):
        raise InputError("not read: a lock of topo-tune, which is always empty")
