"""The NCCL libraries and plugins of a node, where jobs would find them, and what its torch would load.

Nothing is loaded or imported: what is told comes from the files' bytes, names and package records. Standard
library only, Python 3.8: it travels with the collector.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from topo_tune.on_node import nccl_conf, shared_libraries
from topo_tune.on_node.probes import Commands, absence, clean

LIBRARIES_LIMIT = 256
PLUGINS_LIMIT = 256

_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/nccl*/lib",
    "/opt/nccl*/lib",
    "/opt/nccl*/build/lib",
)

# Where packages and providers put plugins that are on no library path until a script sets one.
_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib*",
    "/opt/amazon/ofi-nccl/lib/*-linux-gnu",
    "/opt/aws-ofi-nccl*/lib*",
    "/opt/hpcx*/nccl_rdma_sharp_plugin/lib",
    "/opt/hpcx*/nccl_spectrum-x_plugin/lib",
    "/usr/local/gib/lib64",
    "/usr/local/gib/lib",
    "/usr/local/fasttrak/lib64",
    "/usr/local/tcpx/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nccl-plugin/lib",
    "/var/lib/tcpxo/lib64",
    "/var/lib/tcpx/lib64",
    "/var/lib/gib/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/home/kubernetes/bin/gib/lib64",
)

PLUGIN_VARIABLES = {
    "NCCL_NET_PLUGIN": "net",
    "NCCL_TUNER_PLUGIN": "tuner",
    "NCCL_PROFILER_PLUGIN": "profiler",
    "NCCL_ENV_PLUGIN": "env",
}
"""The variables that name a plugin, and of which kind. Values that name no file: `none`, and NCCL's own words."""
_NO_FILES = {"", "none", "static_plugin"}

_PLUGIN_NAME = re.compile(r"libr?nccl-[A-Za-z0-9_.-]+?\.so(\.[0-9.]+)?$")
_KINDS = (("ncclTuner", "tuner"), ("ncclProfiler", "profiler"), ("ncclEnv", "env"), ("nccl", "net"))

Json = Dict[str, Any]


def libraries(environment: Mapping[str, str], root: str, home: Optional[str], commands: Commands) -> Json:
    """Every libnccl and every plugin where a job would look, and what the torch of this Python would load.

    A library's `names` is the key of its list in the answer's `names`: the same list travels once. It holds the
    NCCL_ names in its constants and the interfaces of plugins that it looks for.
    """
    absent: List[Json] = []
    torch = _torch(absent)
    cached = re.findall(r"=> (\S+)", commands.run(("ldconfig", "-p"))["stdout"])
    path_folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries_ = _Libraries()
    torch_nccl: Optional[str] = None
    for path in torch["bundled"] if torch else []:
        entry = libraries_.add(path, "torch")
        torch_nccl = torch_nccl or (entry["version"] if entry else None)
    for folder in _site_folders():
        for path in _libraries_in(os.path.join(folder, "nvidia/nccl/lib")):
            entry = libraries_.add(path, "pip")
            if entry and entry["version"] is None:
                entry["version"] = _package_version(folder)
            if entry and torch and torch["cuda"] and torch["site"] == folder:
                torch_nccl = torch_nccl or entry["version"]
    for folder in path_folders:
        for path in _libraries_in(folder):
            libraries_.add(path, "LD_LIBRARY_PATH")
    for path in cached + [p for folder in _folders(_LIBRARY_FOLDERS) for p in _libraries_in(folder)]:
        if _is_library(os.path.basename(path)):
            libraries_.add(path, "system")
    if torch and torch["cuda"] and torch_nccl is None:
        torch_nccl = _nccl_linked_by(torch, libraries_.found, absent)
    named = nccl_conf.resolve(environment, root, home)
    return {
        "found": libraries_.found[:LIBRARIES_LIMIT],
        "names": libraries_.names,
        "plugins": _plugins(named, path_folders, cached)[:PLUGINS_LIMIT],
        "torch": torch["version"] if torch else None,
        "torch_cuda": torch["cuda"] if torch else None,
        "torch_nccl": torch_nccl,
        "absent": absent,
    }


class _Libraries:
    """The libnccl files that were found; one that is reached by several names counts once."""

    def __init__(self) -> None:
        self.found: List[Json] = []
        self.names: Dict[str, List[str]] = {}
        self._by_file: Dict[Tuple[int, int], Json] = {}

    def add(self, path: str, found_in: str) -> Optional[Json]:
        """What is known of the library at this path; None where there is no file."""
        file = _file(path)
        if file is None:
            return None
        if file in self._by_file:
            return self._by_file[file]
        real = os.path.realpath(path)
        told = _looked_into(real)
        entry = {
            "path": clean(path),
            "real": clean(real),
            "found_in": found_in,
            "version": told["version"] or _version_in_name(real),
            "names": self._key(told["names"] + told["accepts"]),
        }
        self._by_file[file] = entry
        self.found.append(entry)
        return entry

    def _key(self, names: List[str]) -> Optional[str]:
        if not names:
            return None
        key = hashlib.sha256("\n".join(names).encode("ascii")).hexdigest()[:16]
        self.names[key] = names
        return key


def _plugins(named: Mapping[str, Tuple[str, str]], path_folders: List[str], cached: List[str]) -> List[Json]:
    """Plugins that variables name, then those on the library path, in the loader's cache, in usual folders."""
    found: List[Json] = []
    seen: Set[Tuple[Tuple[int, int], str]] = set()
    for variable, kind in PLUGIN_VARIABLES.items():
        for word in (word.strip() for word in named.get(variable, ("", ""))[0].split(",")):
            if word.lower() in _NO_FILES:
                continue
            path = _named_plugin(word, kind, path_folders, cached)
            if path is None:
                found.append({"kind": kind, "path": clean(word), "found_in": variable, "exists": False})
                continue
            seen.add((_file(path) or (0, 0), kind))
            found.append(_plugin(kind, path, variable, _looked_into(path)))
    for path, found_in in _plugin_files(path_folders, cached):
        file = _file(path)
        if file is None:
            continue
        told = _looked_into(path)
        for kind in _kinds(told["interfaces"], os.path.basename(path)):
            if (file, kind) not in seen:
                seen.add((file, kind))
                found.append(_plugin(kind, path, found_in, told))
    return found


def _plugin(kind: str, path: str, found_in: str, told: Json) -> Json:
    interfaces = [name for name in told["interfaces"] if _kind(name) == kind]
    names = told["names"][:128]
    return {"kind": kind, "path": clean(path), "found_in": found_in, "interfaces": interfaces, "names": names}


def _named_plugin(word: str, kind: str, path_folders: List[str], cached: List[str]) -> Optional[str]:
    """The file that NCCL would load for this word: a path, a library's name, or the end of one."""
    if "/" in word:
        return word if os.path.isfile(word) else None
    folders = path_folders + _folders(_LIBRARY_FOLDERS)
    for name in (word, "libnccl-%s-%s.so" % (kind, word)):
        for path in [os.path.join(folder, name) for folder in folders] + cached:
            if os.path.basename(path) == name and os.path.isfile(path):
                return path
    return None


def _plugin_files(path_folders: List[str], cached: List[str]) -> Iterator[Tuple[str, str]]:
    """Files whose names are those of plugins; of several names of one file the one without more words first."""
    for folder in path_folders:
        yield from ((path, "LD_LIBRARY_PATH") for path in _plugins_in(folder))
    yield from ((path, "system") for path in cached if _PLUGIN_NAME.match(os.path.basename(path)))
    for folder in _folders(_LIBRARY_FOLDERS):
        yield from ((path, "system") for path in _plugins_in(folder))
    for folder in _folders(_PLUGIN_FOLDERS):
        yield from ((path, "usual folder") for path in _plugins_in(folder))


def _plugins_in(folder: str) -> List[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [
        os.path.join(folder, name)
        for name in sorted(names, key=lambda n: (len(n), n))
        if _PLUGIN_NAME.match(name)
    ]


def _kinds(interfaces: List[str], name: str) -> List[str]:
    """The kinds that a library's symbols tell; its name's where it exports none."""
    kinds = list(dict.fromkeys(_kind(interface) for interface in interfaces))
    return kinds or [kind for kind in PLUGIN_VARIABLES.values() if re.match(r"libr?nccl-%s\b" % kind, name)]


def _kind(interface: str) -> str:
    return next(kind for beginning, kind in _KINDS if interface.startswith(beginning))


def _looked_into(path: str) -> Json:
    try:
        return shared_libraries.look_into(path)
    except (OSError, ValueError):
        # mmap refuses an empty file with a ValueError
        return {"version": None, "names": [], "accepts": [], "interfaces": []}


def _file(path: str) -> Optional[Tuple[int, int]]:
    """Which file a path leads to, whatever its name; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if os.path.isfile(path) else None


def _folders(patterns: Tuple[str, ...]) -> List[str]:
    return [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]


def _beginning(path: str, absent: List[Json]) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(16 << 10).decode("utf-8", "replace")
    except OSError as error:
        absent.append(absence("torch version", "cannot read %s: %s" % (clean(path), error.strerror)))
        return ""


def _torch(absent: List[Json]) -> Optional[Json]:
    """Versions and own libraries of the torch that this Python would import; it is not imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError) as error:
        absent.append(absence("torch", clean(str(error))))
        return None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        absent.append(absence("torch", "this Python cannot import torch"))
        return None
    folder = folders[0]
    text = _beginning(os.path.join(folder, "version.py"), absent)
    version = re.search(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", text, re.M)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", text, re.M)
    return {
        "version": version.group(1) if version else "unknown",
        "cuda": cuda.group(1) if cuda else None,
        "folder": folder,
        "site": os.path.dirname(folder),
        "bundled": _libraries_in(os.path.join(folder, "lib")),
    }


def _nccl_linked_by(torch: Json, found: List[Json], absent: List[Json]) -> Optional[str]:
    """The NCCL inside libtorch_cuda.so, or the one on the library path that it would load."""
    path = os.path.join(torch["folder"], "lib", "libtorch_cuda.so")
    static = shared_libraries.version_in(path)
    if static:
        return static
    for found_in in ("LD_LIBRARY_PATH", "system"):
        for entry in found:
            if entry["found_in"] == found_in and entry["version"]:
                return str(entry["version"])
    absent.append(absence("NCCL of torch", "torch has CUDA, and no libnccl is where it would look"))
    return None


def _site_folders() -> List[str]:
    return [
        folder
        for folder in dict.fromkeys(os.path.abspath(p or ".") for p in sys.path)
        if os.path.isdir(folder)
    ]


def _package_version(site: str) -> Optional[str]:
    for folder in sorted(
        glob.glob(os.path.join(glob.escape(site), "nvidia_nccl_cu*-*.dist-info")), reverse=True
    ):
        match = re.search(r"-([0-9][0-9.]*)\.dist-info$", folder)
        if match:
            return match.group(1)
    return None


def _libraries_in(folder: str) -> List[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if _is_library(name)]


def _is_library(name: str) -> bool:
    return re.match(r"libnccl\.so(\.[0-9.]+)?$", name) is not None


def _version_in_name(path: str) -> Optional[str]:
    match = re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)$", path)
    return match.group(1) if match else None
