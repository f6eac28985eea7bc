"""What a node can tell about itself, gathered in one go and printed as one line of JSON.

Everything here is raw: texts of files, outputs of commands, lists of what exists. Meaning is given to it by
`topo_tune.scan` on the other side. Runs under the node's own Python, 3.8 or newer, standard library only
(NVML through `pynvml` where it happens to be installed); changes nothing on the node.

Each group of questions is a probe (see `probes`); what facts ask beyond the collector's own questions comes with
the request (see `gather`).
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
import socket
import stat
import struct
import sys
import time
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from topo_tune.on_node import gather, nccl_conf, nccl_libraries
from topo_tune.on_node.probes import Commands, absence, clean, run_probes

MARKER = "@topo-tune@ "
"""Begins the line that holds the answer; the same as in `topo_tune/connect/program.py`."""

FORMAT = "topo-tune/collector"
VERSION = 1

ANSWER_LIMIT_BYTES = 48 << 20
"""Of the whole; a connection takes 64 MiB, and hundreds of nodes may answer at once. A node with 200 PCI devices and
16 ports of 64 GIDs says less than 1 MiB."""
TEXT_LIMIT_BYTES = 64 << 10
"""How much of a file's text travels; its hash is of the whole file."""
HASHED_LIMIT_BYTES = 16 << 20
LIST_LIMIT = 1024
"""Interfaces, devices or files of one kind; more than that is said and cut."""

# A probe gives up its command this long before it would be ended itself, so that it can still say what it
# has, and so that no command outlives its probe.
_GRACE_SECONDS = 0.5

_QUERY_FIELDS = "index,name,uuid,pci.bus_id,memory.total,driver_version"

_CPUINFO_KEYS = (
    "processor",
    "vendor_id",
    "model name",
    "physical id",
    "core id",
    "CPU implementer",
    "CPU part",
    "cpu",
    "machine",
)

Json = Dict[str, Any]


def main(stdin: BinaryIO) -> int:
    """Read a request, a JSON object, up to the end of `stdin`; print the answer behind the marker."""
    try:
        request = _read_request(stdin.read())
    except ValueError as error:
        answer = {"error": "the collector's request cannot be understood: %s" % error}  # type: Json
    else:
        root = request["root"]
        if root not in ("", "/") and not os.path.isdir(root):
            # Without it every file would look absent, and the node like one where nothing is set.
            answer = {"error": "the node's `root` %s is no folder there" % root}
        else:
            answer = collect(request, dict(os.environ))
    line = json.dumps(answer)
    if len(line) > ANSWER_LIMIT_BYTES and "gathered" in answer:
        reason = "an answer of %d bytes is more than the connection takes" % len(line)
        answer["absent"].append(absence("all that facts ask beyond the collector's own questions", reason))
        line = json.dumps({**answer, "gathered": {}})
    # The empty line ends whatever a login script left unfinished.
    sys.stdout.write("\n" + MARKER + line + "\n")
    sys.stdout.flush()
    return 0


def collect(request: Mapping[str, Any], environment: Mapping[str, str]) -> Json:
    """Everything this node tells, as plain JSON values.

    The request's keys: `root` (prefix of the node's files), `home` (None: $HOME), `command_deadline_seconds`
    (for each command), `deadline_seconds` (for the whole), and `questions`, those of the facts.
    """
    questions = request["questions"]  # type: gather.Questions
    started = time.monotonic()
    root, home = request["root"], request["home"]
    command_seconds = request["command_deadline_seconds"]
    until = started + request["deadline_seconds"]
    proc, sys_ = _proc_or_sys(root, "proc"), _proc_or_sys(root, "sys")
    commands = Commands(environment, command_seconds, until - _GRACE_SECONDS)
    # What asks little is not waited for as long as what asks a tool a dozen times.
    soon = min(until, started + _soon_seconds(command_seconds))
    place = gather.Place(root, proc, sys_, home or environment.get("HOME") or "/nonexistent", environment)
    groups = questions.by_program()
    smi_group = groups.pop("nvidia-smi", [])
    probes = {
        "machine": (lambda: machine(root, proc), soon),
        "cpu": (lambda: cpu(proc, sys_), soon),
        "numa": (lambda: numa(sys_), soon),
        "nvml": (nvml, min(until, started + command_seconds)),
        "nvidia_smi": (lambda: nvidia_smi(commands, smi_group), until),
        "network": (lambda: network(sys_, commands), soon),
        "libraries": (lambda: nccl_libraries.libraries(environment, root, home, commands), soon),
        "files": (lambda: files(environment, root, home), soon),
        "gathered files": (lambda: gather.read_files(questions, place, until), until),
    }  # type: Dict[str, Tuple[Callable[[], Json], float]]
    for program, group in groups.items():
        probes["`%s`" % clean(program)] = (_asking(commands, group), until)
    answer = {
        "format": FORMAT,
        "version": VERSION,
        "hostname": clean(socket.gethostname()),
        "kernel": clean(platform.release()),
        "architecture": platform.machine(),
        "python": "%s %s" % (platform.python_version(), clean(sys.executable or "?")),
        "root": clean(root),
        "proc": clean(proc),
        "sys": clean(sys_),
        "environment": nccl_variables(environment),
    }  # type: Json
    absent, answered, read = [], {}, []  # type: List[Json], Dict[Tuple[str, ...], Json], List[Json]
    for name, result in run_probes(probes).items():
        absent.extend(result.pop("absent", []))
        answered.update((tuple(told["argv"]), told) for told in result.pop("commands", []))
        if name == "gathered files":
            read = result.get("files", [])
        elif not name.startswith("`"):
            answer[name] = result
    answer["gathered"] = {
        "commands": [answered.get(_told_as(argv)) or _lost(argv) for argv in questions.commands],
        "files": read,
        "environment": gather.variables(questions.environment, environment),
    }
    answer["absent"] = absent
    answer["seconds"] = round(time.monotonic() - started, 3)
    return answer


def _asking(commands: Commands, group: List[Tuple[Tuple[str, ...], gather.Keeps]]) -> Callable[[], Json]:
    return lambda: gather.run_commands(commands, group)


def _told_as(argv: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple(clean(word) for word in argv)


def _lost(argv: Tuple[str, ...]) -> Json:
    return gather.unanswered(argv, "`%s` gave no answer in its time and was ended" % clean(argv[0]))


def _soon_seconds(command_seconds: float) -> float:
    # Twice: a tool that has hung is not asked again, and another one may hang after it.
    return 2 * command_seconds + 5.0


def _read_request(data: bytes) -> Json:
    given = json.loads(data.decode("utf-8") or "{}")
    if not isinstance(given, dict):
        raise ValueError("it is not an object")
    command_seconds = given.get("command_deadline_seconds", 10.0)
    request = {
        "questions": gather.Questions(given),
        "root": given.get("root") or "/",
        "home": given.get("home"),
        "command_deadline_seconds": command_seconds,
        "deadline_seconds": given.get("deadline_seconds"),
    }
    for name in ("root", "home"):
        if not isinstance(request[name], (str, type(None))):
            raise ValueError("`%s` is not text" % name)
    if request["deadline_seconds"] is None and isinstance(command_seconds, (int, float)):
        request["deadline_seconds"] = _soon_seconds(command_seconds)
    for name in ("command_deadline_seconds", "deadline_seconds"):
        value = request[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 86400:
            raise ValueError("`%s` is not a number of seconds" % name)
    return request


def nccl_variables(environment: Mapping[str, str]) -> List[List[str]]:
    """The NCCL_ variables, sorted; nothing else of the environment ever leaves the node."""
    return gather.variables(["NCCL_*"], environment)


# --- the probes ---------------------------------------------------------------------------------------------


def machine(root: str, proc: str) -> Json:
    """Operating system and memory."""
    absent = []  # type: List[Json]
    os_release = _first_text([nccl_conf.under(root, p) for p in ("/etc/os-release", "/usr/lib/os-release")])
    if os_release is None:
        absent.append(absence("operating system", "no os-release file below %s" % root))
    meminfo = _text(os.path.join(proc, "meminfo"), absent, "memory")
    return {"os_release": os_release, "meminfo": (meminfo or "")[:4096] or None, "absent": absent}


def cpu(proc: str, sys_: str) -> Json:
    """The lines of /proc/cpuinfo that say what the CPUs are, and how many packages and cores /sys counts."""
    absent = []  # type: List[Json]
    text = _text(os.path.join(proc, "cpuinfo"), absent, "CPU", limit=4 << 20)
    lines = [line for line in (text or "").splitlines() if line.split(":")[0].strip() in _CPUINFO_KEYS]
    packages, cores, threads = set(), set(), 0
    for folder in glob.glob(os.path.join(sys_, "devices/system/cpu/cpu[0-9]*/topology")):
        package = _value(os.path.join(folder, "physical_package_id"))
        core = _value(os.path.join(folder, "core_id"))
        threads += 1
        if package is not None and package != "-1":
            packages.add(package)
        if core is not None:
            cores.add((package, core))
    return {
        "cpuinfo": "\n".join(lines),
        "sockets": len(packages) or None,
        "cores": len(cores) or None,
        "threads": threads or None,
        "absent": absent,
    }


def numa(sys_: str) -> Json:
    """Each NUMA node's CPU list and memory."""
    absent = []  # type: List[Json]
    found = []
    for folder in glob.glob(os.path.join(sys_, "devices/system/node/node[0-9]*")):
        digits = os.path.basename(folder)[4:]
        if digits.isdigit():
            cpulist = _value(os.path.join(folder, "cpulist")) or ""
            meminfo = _text(os.path.join(folder, "meminfo"), [], "") or ""
            found.append({"index": int(digits), "cpulist": cpulist, "meminfo": meminfo[:256]})
    if not found:
        absent.append(absence("NUMA nodes", "none below %s/devices/system/node" % sys_))
    return {"nodes": sorted(found, key=lambda node: int(str(node["index"]))), "absent": absent}


def nvml() -> Json:
    """GPUs as NVML tells them, through `pynvml` where this Python has it."""
    try:
        import pynvml
    except ImportError:
        return {"absent": [absence("NVML", "this Python has no `pynvml`; `nvidia-smi` is asked instead")]}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"absent": [absence("NVML", clean(str(error)))]}

    def ask(function_name: str, *arguments: Any) -> Any:
        function = getattr(pynvml, function_name, None)
        if function is None:
            return None
        try:
            answer = function(*arguments)
        except pynvml.NVMLError:
            return None
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    gpus, absent = [], []
    for index in range(ask("nvmlDeviceGetCount") or 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            absent.append(absence("GPU %d" % index, "NVML counts it and gives no handle for it"))
            continue
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
        pci = ask("nvmlDeviceGetPciInfo", handle)
        bus_id = getattr(pci, "busId", None)
        gpus.append(
            {
                "index": index,
                "name": ask("nvmlDeviceGetName", handle),
                "uuid": ask("nvmlDeviceGetUUID", handle),
                "pci_bus_id": bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id,
                "memory_bytes": None if memory is None else int(memory.total),
                "compute_capability": None if capability is None else "%d.%d" % tuple(capability),
            }
        )
    cuda = ask("nvmlSystemGetCudaDriverVersion")
    return {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda_driver": None if not cuda else "%d.%d" % (cuda // 1000, cuda % 1000 // 10),
        "gpus": gpus,
        "absent": absent,
    }


def nvidia_smi(commands: Commands, asked: Sequence[Tuple[Tuple[str, ...], gather.Keeps]] = ()) -> Json:
    """The outputs of `nvidia-smi topo -m`, of its query and of its table, then of what facts ask of it.

    One after the other: without persistence mode every call wakes all GPUs, and calls at once wait for each other.
    """
    topology = commands.run(("nvidia-smi", "topo", "-m"))
    query = commands.run(("nvidia-smi", "--query-gpu=%s,compute_cap" % _QUERY_FIELDS, "--format=csv,nounits"))
    if query["status"] not in (None, 0) or "not a valid field" in query["stdout"]:
        # Drivers before 510 do not know compute_cap.
        query = commands.run(("nvidia-smi", "--query-gpu=%s" % _QUERY_FIELDS, "--format=csv,nounits"))
    header = commands.run(("nvidia-smi",))
    told = gather.run_commands(commands, asked)
    return {"topology": topology, "query": query, "header": header, **told}


def network(sys_: str, commands: Commands) -> Json:
    """Network interfaces, RDMA devices, and where GPUs sit on the PCI bus."""
    absent = []  # type: List[Json]
    addresses = _addresses(commands, absent) if sys_ == "/sys" else {}
    interfaces = []
    for folder in _listed(os.path.join(sys_, "class/net"), "network interfaces", absent):
        name = os.path.basename(folder)
        interfaces.append(
            {
                "name": clean(name),
                "type": _value(os.path.join(folder, "type")),
                "operstate": _value(os.path.join(folder, "operstate")),
                "speed": _value(os.path.join(folder, "speed")),
                "devtype": _devtype(folder),
                "has_device": os.path.exists(os.path.join(folder, "device")),
                "numa_node": _value(os.path.join(folder, "device/numa_node")),
                "driver": _link_name(os.path.join(folder, "device/driver")),
                "addresses": addresses.get(name, []),
            }
        )
    rdma = []
    for folder in _listed(os.path.join(sys_, "class/infiniband"), "RDMA devices", absent):
        ports = []
        for port in sorted(glob.glob(os.path.join(folder, "ports/*"))):
            parts = {key: _value(os.path.join(port, key)) for key in ("state", "rate", "link_layer")}
            ports.append({"port": os.path.basename(port), **parts})
        rdma.append(
            {
                "name": clean(os.path.basename(folder)),
                "ports": ports,
                "numa_node": _value(os.path.join(folder, "device/numa_node")),
                "driver": _link_name(os.path.join(folder, "device/driver")),
            }
        )
    files_ = sorted(glob.glob("/dev/infiniband/uverbs*"))
    return {
        "interfaces": interfaces,
        "rdma": rdma,
        "rdma_files": [path for path in files_ if os.access(path, os.R_OK | os.W_OK)],
        "gpu_functions": _gpu_functions(sys_),
        "absent": absent,
    }


def files(environment: Mapping[str, str], root: str, home: Optional[str]) -> Json:
    """The files that NCCL reads, in its order, and the fragments of topo-tune's drop-in directory."""
    paths = nccl_conf.files_in_order(environment, root, home)
    pattern = os.path.join(glob.escape(nccl_conf.under(root, nccl_conf.DROP_IN_DIRECTORY)), "*.conf")
    read = [_conf_file(path, "nccl") for path in dict.fromkeys(paths)]
    return {"files": read + [_conf_file(path, "drop-in") for path in sorted(glob.glob(pattern))[:LIST_LIMIT]]}


# --- parts of the probes ------------------------------------------------------------------------------------


def _conf_file(path: str, role: str) -> Json:
    entry = {
        "path": clean(path),
        "role": role,
        "exists": False,
        "sha256": None,
        "text": None,
        "problem": None,
    }  # type: Json
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return {**entry, "exists": True, "problem": "is not an ordinary file"}
        with open(path, "rb") as file:
            data = file.read(HASHED_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return entry
    except OSError as error:
        unreadable = not isinstance(error, NotADirectoryError)
        return {**entry, "exists": unreadable, "problem": clean(error.strerror or str(error))}
    entry["exists"] = True
    if len(data) > HASHED_LIMIT_BYTES:
        return {**entry, "problem": "is larger than %d bytes and was not read" % HASHED_LIMIT_BYTES}
    entry["sha256"] = hashlib.sha256(data).hexdigest()
    entry["text"] = nccl_conf.without_secrets(data[:TEXT_LIMIT_BYTES].decode("utf-8", "replace"))
    if len(data) > TEXT_LIMIT_BYTES:
        entry["problem"] = "only the first %d of %d bytes were looked at" % (TEXT_LIMIT_BYTES, len(data))
    elif b"\0" in data:
        entry["problem"] = "holds zero bytes"
    return entry


def _addresses(commands: Commands, absent: List[Json]) -> Dict[str, List[str]]:
    """Interface name to its addresses with prefix lengths; hardware addresses stay on the node."""
    output = commands.run(("ip", "-j", "addr"))
    found = {}  # type: Dict[str, List[str]]
    if output["status"] == 0:
        try:
            for entry in json.loads(output["stdout"]):
                infos = entry.get("addr_info", [])
                found[entry["ifname"]] = [
                    "%s/%s" % (info["local"], info["prefixlen"]) for info in infos if "local" in info
                ]
            return found
        except (ValueError, KeyError, TypeError, AttributeError):
            absent.append(
                absence("addresses", "`ip -j addr` did not answer in JSON; only IPv4 is asked of the kernel")
            )
    return {name: address for name, address in _ipv4_of_kernel().items() if address}


def _ipv4_of_kernel() -> Dict[str, List[str]]:
    import fcntl

    siocgifaddr = 0x8915  # linux/sockios.h
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode("utf-8", "surrogateescape")[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), siocgifaddr, request)
            except OSError:
                # no IPv4 address on it
                continue
            found[name] = [socket.inet_ntoa(answer[20:24])]
    return found


def _gpu_functions(sys_: str) -> List[Json]:
    """NVIDIA display controllers on the PCI bus: there even when the driver is not."""
    found = []
    for folder in sorted(glob.glob(os.path.join(sys_, "bus/pci/devices/*"))):
        if _value(os.path.join(folder, "vendor")) != "0x10de":
            continue
        if (_value(os.path.join(folder, "class")) or "").startswith(("0x0300", "0x0302")):
            numa_node = _value(os.path.join(folder, "numa_node"))
            found.append({"pci_bus_id": os.path.basename(folder), "numa_node": numa_node})
    return found[:LIST_LIMIT]


def _devtype(folder: str) -> Optional[str]:
    for name in ("bridge", "bonding", "tun_flags"):
        if os.path.exists(os.path.join(folder, name)):
            return name
    match = re.search(r"^DEVTYPE=(\S+)$", _text(os.path.join(folder, "uevent"), [], "") or "", re.M)
    return clean(match.group(1)) if match else None


def _listed(folder: str, what: str, absent: List[Json]) -> List[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        absent.append(absence(what, "cannot list %s: %s" % (folder, error.strerror)))
        return []
    if len(names) > LIST_LIMIT:
        absent.append(absence(what, "%d found, the first %d kept" % (len(names), LIST_LIMIT)))
    # /sys/class/net also holds plain files such as bonding_masters.
    return [
        os.path.join(folder, name) for name in names[:LIST_LIMIT] if os.path.isdir(os.path.join(folder, name))
    ]


def _proc_or_sys(root: str, name: str) -> str:
    """/proc or /sys below the root prefix where it is there, the machine's own otherwise."""
    own = nccl_conf.under(root, "/" + name)
    return own if os.path.isdir(own) else "/" + name


def _first_text(paths: List[str]) -> Optional[str]:
    for path in paths:
        text = _text(path, [], "")
        if text is not None:
            return text
    return None


def _text(path: str, absent: List[Json], what: str, limit: int = TEXT_LIMIT_BYTES) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError as error:
        absent.append(absence(what, "cannot read %s: %s" % (clean(path), error.strerror)))
        return None


def _value(path: str) -> Optional[str]:
    """A one-line file of /sys, or None: some of them answer with an error while a device is down."""
    text = _text(path, [], "", limit=4096)
    return None if text is None else text.strip() or None


def _link_name(path: str) -> Optional[str]:
    try:
        return clean(os.path.basename(os.readlink(path)))
    except OSError:
        return None
