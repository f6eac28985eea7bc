"""Writes NCCL settings on a node, whole files only, and puts the old bytes back.

NCCL reads `/etc/nccl.conf` and knows nothing of `/etc/nccl/conf.d`. So the settings are a fragment in that
directory, and all fragments are merged into a marked block of `/etc/nccl.conf`; every line outside the block
stays as it is.

One JSON request on standard input, one marked JSON line as the answer. Requests, by `op`:

- `plan` {root, settings, homes?}: the files before and after, directories to be made, conflicts, notes
- `write` {root, files: [{path, expected_sha256, content_base64, mode, uid, gid}], make_directories,
  valid_seconds?}
- `restore` {root, files: [{path, expected_sha256, before, written_base64?}], directories, force?}
- `inspect` {root}: the files now, and the settings that a process started here would have

An `expected_sha256` or `content_base64` of null stands for absence. Paths are the node's own; `root` is a
prefix for all of them. `write` and `restore` answer with the files after. A refusal is
`{"error": ..., "kind": ...}`.

Nobody can stop a writer whose link is lost, so two rules keep a late write from undoing a restore. `write`
and `restore` hold a lock on the root folder from their first look at a file to their last, so neither comes
in between the other. And a write is valid for `valid_seconds` from its start: one that waited or stalled
longer changes nothing. After that time, a restore that got the lock has the last word. Runs under Python 3.8,
standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from topo_tune.on_node import nccl_conf

FRAGMENT = nccl_conf.DROP_IN_DIRECTORY + "/50-topo-tune.conf"
SYSTEM_FILE = nccl_conf.SYSTEM_FILE
FILES = (FRAGMENT, SYSTEM_FILE)
"""The files topo-tune writes, in the order it writes them: what is merged exists before the merge does."""

# No `=` in a marker line: before NCCL 2.26.2 `#` began no comment, and such a line would set a variable.
BEGIN_MARKER = "# topo-tune begin: merged from /etc/nccl/conf.d, edit there"
END_MARKER = "# topo-tune end"
# A block is found by these words, so that the rest of the marker may be worded differently one day.
_BEGIN_WORDS = "# topo-tune begin"

UNCHANGED = "nothing was changed"
"""Ends every refusal after which the node's files are as they were before the request."""

_MARKER = "@topo-tune@ "
_TEMPORARY = ".topo-tune-"
_NEW_FILE_MODE = 0o644
_NEW_DIRECTORY_MODE = 0o755
# A configuration file is some hundred bytes; anything near this size is not one. (The journal keeps it
# whole.)
_LARGEST_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f]")
_DIFF_LINES = 60
# Another writer needs some milliseconds; one that holds the lock for longer hangs.
_LOCK_SECONDS = 20.0
_LOCK_PAUSE_SECONDS = 0.05

Settings = Dict[str, str]


class WriterError(Exception):
    """A request that was not carried out: what is wrong, and a word for its kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class State(NamedTuple):
    """One file: its bytes (None: it does not exist), and its mode and owner."""

    path: str
    content: Optional[bytes]
    mode: Optional[int] = None
    uid: Optional[int] = None
    gid: Optional[int] = None

    @property
    def sha256(self) -> Optional[str]:
        """SHA-256 of the bytes, hexadecimal; None when there is no file."""
        return None if self.content is None else hashlib.sha256(self.content).hexdigest()

    def to_json(self) -> Dict[str, Any]:
        """As `records.rollout.FileState` reads it."""
        return {
            "path": self.path,
            "exists": self.content is not None,
            "content_base64": None
            if self.content is None
            else base64.b64encode(self.content).decode("ascii"),
            "sha256": self.sha256,
            "mode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        }


class Conflict(NamedTuple):
    """Somebody else who sets one of our names."""

    name: str
    value: str
    where: str


# --- pure: what the files become -------------------------------------------------------------------------


def fragment_text(settings: Mapping[str, str]) -> str:
    """The fragment: sorted bare `NAME=VALUE` lines with line feeds, which every NCCL version reads alike."""
    return "".join("%s=%s\n" % (name, settings[name]) for name in sorted(settings))


def merge_fragments(fragments: Sequence[Tuple[str, str]]) -> Settings:
    """Name to value over (path, text) pairs in the given order; the first line of a name wins, as for NCCL.

    Lines whose name no environment variable could have in earnest (`export NCCL_X`) are left out:
    `strange_lines` tells of them.
    """
    merged: Settings = {}
    for _, text in fragments:
        for _, name, value in nccl_conf.parse(text):
            if _NAME.fullmatch(name):
                merged.setdefault(name, value)
    return merged


def merge(old: str, settings: Mapping[str, str]) -> str:
    """`old` with its marked block replaced by one that holds `settings`; a missing block is added at the end.

    Every line outside the block is kept as it is, except that a last line without its newline gets one when a
    block follows. Without settings there is no block. Raises WriterError for damaged markers.
    """
    before, _, after = split(old)
    block = "".join("%s=%s\n" % item for item in settings.items())
    if block:
        block = "%s\n%s%s\n" % (BEGIN_MARKER, block, END_MARKER)
        if before and not before.endswith("\n"):
            before += "\n"
    return before + block + after


def split(text: str) -> Tuple[str, str, str]:
    """The text before the marked block, the block with its markers, and the text behind it.

    Without a block, everything is before it. Raises WriterError when the markers do not make one block.
    """
    begins: List[Tuple[int, int]] = []
    ends: List[Tuple[int, int]] = []
    start = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        stop = start + len(line) + (1 if number < len(lines) else 0)
        if line.startswith(_BEGIN_WORDS):
            begins.append((number, start))
        elif line.rstrip() == END_MARKER:
            ends.append((number, stop))
        start = stop
    if not begins and not ends:
        return text, "", ""
    if len(begins) != 1 or len(ends) != 1 or ends[0][0] < begins[0][0]:
        raise WriterError(
            "damaged-markers",
            "%s: its topo-tune markers do not make one block (`%s` on line %s, `%s` on line %s); "
            "mend or remove them by hand; %s"
            % (SYSTEM_FILE, _BEGIN_WORDS, _numbers(begins), END_MARKER, _numbers(ends), UNCHANGED),
        )
    return text[: begins[0][1]], text[begins[0][1] : ends[0][1]], text[ends[0][1] :]


def set_outside(text: str) -> List[Tuple[int, str, str]]:
    """The settings of `/etc/nccl.conf` outside the marked block: (line number, name, value)."""
    before, block, after = split(text)
    lines_until_after = before.count("\n") + block.count("\n")
    behind = [(number + lines_until_after, name, value) for number, name, value in nccl_conf.parse(after)]
    return list(nccl_conf.parse(before)) + behind


def strange_lines(path: str, text: str) -> List[str]:
    """What NCCL would misread in a fragment, one sentence a line."""
    return ["%s:%d %s" % (path, number, what) for number, what in nccl_conf.problems(text)]


def find_conflicts(
    settings: Mapping[str, str],
    system_text: str,
    fragments: Sequence[Tuple[str, str]],
    home_files: Sequence[Tuple[str, str]],
    environment: Mapping[str, str],
) -> List[Conflict]:
    """Everybody else who sets a name of `settings`.

    Outside the block of `/etc/nccl.conf`, in a home file or in the environment any value counts: it beats
    ours, or ours beats it. A fragment (ours has its new text here) conflicts only with another value.
    """
    found = [
        Conflict(name, value, "%s:%d" % (SYSTEM_FILE, number))
        for number, name, value in set_outside(system_text)
        if name in settings
    ]
    for path, text in fragments:
        found += [
            Conflict(name, value, "%s:%d" % (path, number))
            for number, name, value in nccl_conf.parse(text)
            if name in settings and value != settings[name]
        ]
    for path, text in home_files:
        found += [
            Conflict(name, value, "%s:%d" % (path, number))
            for number, name, value in nccl_conf.parse(text)
            if name in settings
        ]
    found += [
        Conflict(name, environment[name], "the environment of topo-tune's session")
        for name in sorted(settings)
        if name in environment
    ]
    if environment.get("NCCL_CONF_FILE"):
        found.append(
            Conflict(
                "NCCL_CONF_FILE", environment["NCCL_CONF_FILE"], "the environment of topo-tune's session"
            )
        )
    return found


def side_effects(settings: Mapping[str, str], old: str, new: str) -> List[str]:
    """Notes on other names whose value in `/etc/nccl.conf` changes because fragments are merged anew."""
    today, then = _first_of_each(old), _first_of_each(new)
    return [
        "the merge changes `%s` in %s as well: from %s to %s"
        % (name, SYSTEM_FILE, _value(today.get(name)), _value(then.get(name)))
        for name in sorted({**today, **then})
        if name not in settings and today.get(name) != then.get(name)
    ]


# --- operations ------------------------------------------------------------------------------------------


def plan(request: Mapping[str, Any], environment: Mapping[str, str]) -> Dict[str, Any]:
    """What `settings` would make of the files below `root`; changes nothing."""
    root = _root(request)
    settings = _checked(request["settings"])
    before = [_read(root, path) for path in FILES]
    fragment, system = before
    others = [(path, _text(state.content)) for path, state in _fragments(root) if path != FRAGMENT]
    new_fragment = fragment_text(settings)
    fragments = sorted([*others, (FRAGMENT, new_fragment)])
    merged = merge_fragments(fragments)
    old = _text(system.content)
    new = merge(old, merged)
    after = [
        _becomes(fragment, new_fragment or None),
        _becomes(system, new if new or system.content else None),
    ]
    conflicts = find_conflicts(settings, old, fragments, _home_files(root, request, environment), environment)
    notes = [line for path, text in others for line in strange_lines(path, text)]
    return {
        "before": [state.to_json() for state in before],
        "after": [state.to_json() for state in after],
        "made_directories": _missing_directories(root, [s.path for s in after if s.content is not None]),
        "conflicts": [_say("`%s` is set to `%s` by %s" % conflict) for conflict in conflicts],
        "notes": [_say(note) for note in notes + side_effects(settings, old, new)],
    }


def write(request: Mapping[str, Any], started: Optional[float] = None) -> Dict[str, Any]:
    """Write every file of the request, or none: refused unless each file still is what the plan saw.

    Refused, too, once `valid_seconds` have passed since `started`, which is by the monotonic clock; None: now.
    """
    root = _root(request)
    valid_seconds = request.get("valid_seconds")
    begin = time.monotonic() if started is None else started
    until = None if valid_seconds is None else begin + valid_seconds
    with _locked(root):
        return _write_locked(root, request, until)


def _write_locked(root: str, request: Mapping[str, Any], until: Optional[float]) -> Dict[str, Any]:
    _check_valid(until)
    wanted = []
    for entry in request["files"]:
        found = _read(root, entry["path"])
        content = None if entry["content_base64"] is None else base64.b64decode(entry["content_base64"])
        new = State(entry["path"], content, entry["mode"], entry["uid"], entry["gid"])
        _check_expected(found, entry["expected_sha256"], new)
        wanted.append((found, new))
    made = _make_directories(root, request.get("make_directories", ()))
    try:
        _replace_all(root, [pair for pair in wanted if pair[0] != pair[1]], until)
    except BaseException:
        _remove_directories(root, made)
        raise
    return {"files": [_read(root, state.path).to_json() for _, state in wanted]}


def restore(request: Mapping[str, Any]) -> Dict[str, Any]:
    """Put every file back as it was, in reverse order; a file that is so already counts as put back.

    Refused before anything is touched when a file is neither ours nor the old one, unless `force`.
    """
    root = _root(request)
    with _locked(root):
        return _restore_locked(root, request)


def _restore_locked(root: str, request: Mapping[str, Any]) -> Dict[str, Any]:
    wanted = []
    for entry in request["files"]:
        before = _state(entry["before"])
        found = _read(root, before.path)
        if found.sha256 not in (before.sha256, entry["expected_sha256"]) and not request.get("force"):
            raise WriterError("edited", _edited(found, before, entry))
        wanted.append((found, before))
    _replace_all(root, [pair for pair in reversed(wanted) if pair[0] != pair[1]])
    _sweep(root, [state.path for _, state in wanted])
    _remove_directories(root, request.get("directories", ()))
    return {"files": [_read(root, state.path).to_json() for _, state in wanted]}


def inspect(request: Mapping[str, Any], environment: Mapping[str, str]) -> Dict[str, Any]:
    """The files now, and what a process started in this environment would have: {name: [value, where]}."""
    root = _root(request)
    effective = nccl_conf.resolve(environment, root)
    return {
        "files": [_read(root, path).to_json() for path in FILES],
        "effective": {
            _say(name): [_say(value), _say(where)] for name, (value, where) in sorted(effective.items())
        },
    }


def main(stdin: BinaryIO) -> int:
    """Read one request to the end of `stdin`, carry it out, print one marked answer."""
    status, started = 0, time.monotonic()
    try:
        answer = _dispatch(json.loads(stdin.read().decode("utf-8")), dict(os.environ), started)
    except WriterError as exc:
        answer, status = {"error": _say(str(exc)), "kind": exc.kind}, 1
    print(_MARKER + json.dumps(answer), flush=True)
    return status


def _dispatch(request: Dict[str, Any], environment: Mapping[str, str], started: float) -> Dict[str, Any]:
    with_environment: Dict[str, Callable[..., Dict[str, Any]]] = {"plan": plan, "inspect": inspect}
    op = request.get("op")
    if op in with_environment:
        return with_environment[op](request, environment)
    if op == "write":
        return write(request, started)
    if op == "restore":
        return restore(request)
    raise WriterError("bad-request", "`op` is %r; known: inspect, plan, restore, write" % op)


# --- files -----------------------------------------------------------------------------------------------


def _root(request: Mapping[str, Any]) -> str:
    root = str(request.get("root", "/"))
    if not os.path.isdir(root):
        raise WriterError("no-root", "the root folder %s does not exist; %s" % (root, UNCHANGED))
    return root


@contextlib.contextmanager
def _locked(root: str) -> Iterator[None]:
    """Alone among the writers of this root. The folder itself is locked, so nothing is left behind.

    (A lock on a folder is the kernel's own even on NFS, and ends with the process that holds it.)
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise _os_error(exc, "open", root) from exc
    try:
        _take_lock(descriptor, root)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, root: str) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise WriterError(
                    "busy",
                    "another writer has been at work here for %.0f s and may hang; %s"
                    % (_LOCK_SECONDS, UNCHANGED),
                ) from None
        except OSError as exc:
            raise _os_error(exc, "lock", root) from exc
        time.sleep(_LOCK_PAUSE_SECONDS)


def _check_valid(until: Optional[float]) -> None:
    if until is not None and time.monotonic() > until:
        raise WriterError("expired", "the request came too late to be carried out; %s" % UNCHANGED)


def _located(root: str, path: str) -> str:
    """Where a node path really is: below root, symbolic links followed, so that the link itself stays."""
    real = os.path.realpath(nccl_conf.under(root, path))
    inside = os.path.realpath(root)
    if root not in ("", "/") and os.path.commonpath([real, inside]) != inside:
        raise WriterError("outside", "%s leads to %s, outside of %s; %s" % (path, real, root, UNCHANGED))
    return real


def _read(root: str, path: str) -> State:
    place = nccl_conf.under(root, path)
    try:
        link = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        _check_parents(root, path)
        return State(path, None)
    except OSError as exc:
        raise _os_error(exc, "read", path) from exc
    if stat.S_ISLNK(link.st_mode) and not os.path.exists(place):
        raise _not_regular(path, "a symbolic link to nothing (%s)" % os.readlink(place))
    try:
        return _read_regular(path, _located(root, path))
    except OSError as exc:
        raise _os_error(exc, "read", path) from exc


def _read_regular(path: str, real: str) -> State:
    # Looked at before it is opened: opening a device can have effects of its own, a named pipe would wait.
    _check_regular(path, os.stat(real))
    with open(real, "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(_LARGEST_FILE_BYTES + 1)
    if len(content) > _LARGEST_FILE_BYTES:
        raise WriterError(
            "too-large", "%s is larger than %d bytes; %s" % (path, _LARGEST_FILE_BYTES, UNCHANGED)
        )
    return State(path, content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _check_regular(path: str, status: os.stat_result) -> None:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in kinds if is_kind(status.st_mode)), "a device")
        raise _not_regular(path, kind)
    if status.st_nlink > 1:
        # A rename would part the names, and the undo could not join them again.
        raise _not_regular(path, "one of %d hard links to the same file" % status.st_nlink)


def _check_parents(root: str, path: str) -> None:
    parent = os.path.dirname(path)
    while not os.path.lexists(nccl_conf.under(root, parent)) and parent != "/":
        parent = os.path.dirname(parent)
    if not os.path.isdir(nccl_conf.under(root, parent)):
        raise _not_regular(parent, "no directory")
    _located(root, parent)


def _not_regular(path: str, kind: str) -> WriterError:
    expected = "a directory" if kind == "no directory" else "a plain file"
    return WriterError("not-a-regular-file", "%s is %s, expected %s; %s" % (path, kind, expected, UNCHANGED))


def _fragments(root: str) -> List[Tuple[str, State]]:
    folder = nccl_conf.under(root, nccl_conf.DROP_IN_DIRECTORY)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise _os_error(exc, "list", nccl_conf.DROP_IN_DIRECTORY) from exc
    # A leading dot hides a file from a shell's `*.conf`, and from this merge.
    paths = [
        "%s/%s" % (nccl_conf.DROP_IN_DIRECTORY, name)
        for name in names
        if name.endswith(".conf") and not name.startswith(".")
    ]
    return [(path, _read(root, path)) for path in paths]


def _home_files(
    root: str, request: Mapping[str, Any], environment: Mapping[str, str]
) -> List[Tuple[str, str]]:
    homes = [environment["HOME"]] if environment.get("HOME") else []
    paths = [os.path.join(home, ".nccl.conf") for home in [*homes, *request.get("homes", ())]]
    if environment.get("NCCL_CONF_FILE"):
        paths.insert(0, environment["NCCL_CONF_FILE"])
    found = []
    for path in dict.fromkeys(paths):
        place = nccl_conf.under(root, path)
        try:
            if not stat.S_ISREG(os.stat(place).st_mode):
                continue
            with open(place, "rb") as file:
                found.append((path, _text(file.read(_LARGEST_FILE_BYTES))))
        except OSError:
            # NCCL skips a file it cannot open, without a word; so it sets nothing.
            continue
    return found


def _becomes(state: State, text: Optional[str]) -> State:
    if text is None:
        return State(state.path, None)
    content = text.encode("utf-8", "surrogateescape")
    if state.content is not None:
        return state._replace(content=content)
    return State(state.path, content, _NEW_FILE_MODE, os.geteuid(), os.getegid())


def _missing_directories(root: str, paths: Sequence[str]) -> List[str]:
    missing = set()
    for path in paths:
        parent = os.path.dirname(path)
        while parent != "/" and not os.path.isdir(nccl_conf.under(root, parent)):
            missing.add(parent)
            parent = os.path.dirname(parent)
    return sorted(missing)


def _make_directories(root: str, paths: Sequence[str]) -> List[str]:
    made: List[str] = []
    for path in paths:
        place = nccl_conf.under(root, path)
        try:
            if os.path.isdir(place):
                continue
            os.mkdir(place, _NEW_DIRECTORY_MODE)
            made.append(path)
            os.chmod(place, _NEW_DIRECTORY_MODE)
            _sync_directory(os.path.dirname(place))
        except OSError as exc:
            _remove_directories(root, made)
            raise _os_error(exc, "make the directory", path) from exc
    return made


def _remove_directories(root: str, paths: Sequence[str]) -> None:
    """Remove those that are empty, innermost first; one that somebody else uses by now stays."""
    for path in reversed(paths):
        place = nccl_conf.under(root, path)
        try:
            os.rmdir(place)
            _sync_directory(os.path.dirname(place))
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _os_error(exc, "remove the directory", path, unchanged=False) from exc


def _replace_all(root: str, wanted: Sequence[Tuple[State, State]], until: Optional[float] = None) -> None:
    """Turn each (old, new) file into its new state; when one fails, those before it are put back.

    After `until`, by the monotonic clock, nothing is begun.
    """
    staged: List[Tuple[State, State, str, Optional[str]]] = []
    done: List[Tuple[State, State]] = []
    path = ""
    try:
        # All temporary files first: a full disk shows here, before any file has changed.
        for old, new in wanted:
            path = new.path
            real = _located(root, path)
            staged.append((old, new, real, None if new.content is None else _stage(real, new)))
        _check_valid(until)
        for old, new, real, temporary in staged:
            path = new.path
            _put(real, temporary)
            # From here on the file is new, even should the sync fail.
            done.append((new, old))
            _sync_directory(os.path.dirname(real))
    except BaseException as exc:
        _drop([temporary for _, _, _, temporary in staged[len(done) :] if temporary is not None])
        left = _put_back(root, done)
        if isinstance(exc, OSError):
            raise _os_error(exc, "write", path, unchanged=not left, more=left) from exc
        raise


def _stage(real: str, new: State) -> str:
    """A temporary file beside `real` with the new bytes, mode, owner and extended attributes, synced."""
    folder, name = os.path.split(real)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY + name + ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(new.content or b"")
            file.flush()
            os.fchown(file.fileno(), -1 if new.uid is None else new.uid, -1 if new.gid is None else new.gid)
            _copy_attributes(real, temporary)
            # Last, because an access list among the attributes and a change of owner both touch the mode.
            os.fchmod(file.fileno(), _NEW_FILE_MODE if new.mode is None else new.mode)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _copy_attributes(real: str, temporary: str) -> None:
    """Keep access lists and security labels: extended attributes, which the rename would lose."""
    try:
        names = os.listxattr(real)
    except OSError:
        # The file is new, or its file system has no such attributes.
        return
    for name in names:
        value = os.getxattr(real, name)
        try:
            same = os.getxattr(temporary, name) == value
        except OSError:
            same = False
        if not same:
            os.setxattr(temporary, name, value)


def _put(real: str, temporary: Optional[str]) -> None:
    if temporary is not None:
        os.rename(temporary, real)
    else:
        os.unlink(real)


def _drop(temporaries: Sequence[str]) -> None:
    for temporary in temporaries:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            # It was renamed just before the failure, and so is no temporary file any more.
            pass


def _put_back(root: str, done: Sequence[Tuple[State, State]]) -> List[str]:
    left = []
    for _, old in reversed(done):
        try:
            real = _located(root, old.path)
            _put(real, None if old.content is None else _stage(real, old))
            _sync_directory(os.path.dirname(real))
        except OSError as exc:
            left.append("%s could not be put back either: %s" % (old.path, exc.strerror))
    return left


def _sweep(root: str, paths: Sequence[str]) -> None:
    """Remove temporary files that a killed writer left beside these files."""
    for path in paths:
        folder, name = os.path.split(_located(root, path))
        for temporary in glob.glob(os.path.join(glob.escape(folder), _TEMPORARY + glob.escape(name) + ".*")):
            os.unlink(temporary)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- wording and checks ----------------------------------------------------------------------------------


def _state(entry: Mapping[str, Any]) -> State:
    content = base64.b64decode(entry["content_base64"]) if entry["exists"] else None
    return State(entry["path"], content, entry["mode"], entry["uid"], entry["gid"])


def _text(content: Optional[bytes]) -> str:
    return (content or b"").decode("utf-8", "surrogateescape")


def _checked(settings: Mapping[str, str]) -> Settings:
    for name, value in settings.items():
        if not _NAME.fullmatch(name) or not value or len(value.splitlines()) != 1 or value != value.strip():
            raise WriterError(
                "bad-request", "`%s=%s` cannot be a line of a file; %s" % (name, value, UNCHANGED)
            )
    return dict(settings)


def _say(text: str) -> str:
    """Text as it may travel and be shown: bytes that are no UTF-8 and control characters are spelled out."""
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda match: "\\x%02x" % ord(match.group()), plain)


def _first_of_each(text: str) -> Settings:
    return {name: value for _, name, value in reversed(nccl_conf.parse(text))}


def _value(value: Optional[str]) -> str:
    return "unset" if value is None else "`%s`" % value


def _check_expected(found: State, expected_sha256: Optional[str], new: State) -> None:
    what = "%s was changed since the plan: found %s, expected %s; %s"
    if found.sha256 != expected_sha256:
        raise WriterError(
            "changed", what % (found.path, _sha(found.sha256), _sha(expected_sha256), UNCHANGED)
        )
    # A plan keeps mode and owner, so another mode on the node is somebody's change.
    if found.content is not None and new.content is not None and found[2:] != new[2:]:
        raise WriterError("changed", what % (found.path, _access(found), _access(new), UNCHANGED))


def _access(state: State) -> str:
    return "mode %04o, owner %s:%s" % (state.mode or 0, state.uid, state.gid)


def _sha(sha256: Optional[str]) -> str:
    return "no file" if sha256 is None else "SHA-256 " + sha256


def _numbers(places: Sequence[Tuple[int, int]]) -> str:
    return ", ".join(str(number) for number, _ in places) or "none"


def _edited(found: State, before: State, entry: Mapping[str, Any]) -> str:
    lines = [
        "%s was edited since it was written: found %s, expected %s (ours) or %s (before); %s"
        % (
            found.path,
            _sha(found.sha256),
            _sha(entry["expected_sha256"]),
            _sha(before.sha256),
            UNCHANGED,
        )
    ]
    if entry.get("written_base64") is not None:
        lines += difflib.unified_diff(
            _text(base64.b64decode(entry["written_base64"])).split("\n"),
            _text(found.content).split("\n"),
            found.path + " as written",
            found.path + " as found",
            lineterm="",
        )
    return "\n".join(lines[:_DIFF_LINES])


_KINDS = {
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EROFS: "read-only",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
}


def _os_error(
    exc: OSError, verb: str, path: str, *, unchanged: bool = True, more: Sequence[str] = ()
) -> WriterError:
    parts = ["cannot %s %s: %s" % (verb, path, exc.strerror or exc), *more]
    if unchanged:
        parts.append(UNCHANGED)
    return WriterError(_KINDS.get(exc.errno or 0, "io"), "; ".join(parts))
