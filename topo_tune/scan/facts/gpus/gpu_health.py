"""How each GPU is: links, ECC, clocks, limits, from `nvidia-smi -q` of drivers 418 to 580."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth, PcieLink
from topo_tune.records.scan import GPUS_ARE_CUT, Gpu, NodeScan
from topo_tune.scan.facts.fact import Command, Fact, Gathered, SavedKind, with_absent
from topo_tune.scan.facts.gpus import smi_errors, smi_sections, smi_table
from topo_tune.scan.facts.gpus.known_gpus import with_gpus, with_health
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.gpus.query_health import GT_PER_S
from topo_tune.scan.facts.gpus.smi_sections import Section
from topo_tune.scan.facts.job_output import is_of_a_job
from topo_tune.scan.facts.words import said, whole_number

COMMAND = ("nvidia-smi", "-q")

_MIB = 1 << 20
_NO_DOMAIN = "00000000-0000-0000-0000-000000000000"
# `said` knows the ways of every tool; these are of `nvidia-smi -q` alone.
_NO_ANSWER = re.compile(r"unknown error|insufficient permissions|gpu is lost|.*deprecated|err!", re.I)
_UNHEALTHY = {"degraded", "true", "yes", "unhealthy", "limited capacity"}
_FABRIC_HEALTH = "fabric/health"


class Health(msgspec.Struct, frozen=True):
    """The GPUs of one output, as a list of GPUs and with all that it says of them."""

    gpus: tuple[Gpu, ...]
    health: tuple[GpuHealth, ...]
    driver: str | None = None
    cuda_driver: str | None = None
    problems: tuple[str, ...] = ()


def parse(text: str, *, file: str | None = None) -> Health:
    """Everything that `nvidia-smi -q`, whole or with `-d`, says of each GPU.

    Raises InputError where the text has no GPU's section.
    """
    sections = smi_sections.parse(text)
    if not sections.gpus:
        raise InputError(
            "no GPU: expected sections that begin with `GPU 00000000:18:00.0`",
            file=file,
            hint="save the whole output of `nvidia-smi -q`",
        )
    health = (*(_health(section) for section in sections.gpus), *sections.lost)
    gpus = tuple(_gpu(index, told) for index, told in enumerate(health) if told.name is not None)
    attached = whole_number(sections.heading.get("attached gpus"))
    problems = list(sections.problems)
    if attached is not None and attached > len(health):
        problems.append(f"sections of {len(health)} {GPUS_ARE_CUT} {attached} that are attached")
    return Health(
        gpus=gpus,
        health=health,
        driver=said(sections.heading.get("driver version")),
        cuda_driver=_version(sections.heading.get("cuda version")),
        problems=tuple(problems),
    )


def _gpu(index: int, health: GpuHealth) -> Gpu:
    # Sections come in the order of the addresses, which is the order of the indices.
    return Gpu(
        index=index,
        name=health.name or "unknown",
        uuid=health.uuid,
        pci_bus_id=health.pci_bus_id,
        memory_bytes=health.memory_total_bytes,
        compute_capability=None,
        numa_node=None,
    )


def _health(section: Section) -> GpuHealth:
    pending = (
        _flag(section, "remapped rows/pending"),
        _flag(section, "retired pages/pending page blacklist", "retired pages/pending"),
        _flag(section, "ecc errors/channel repair pending"),
        _flag(section, "ecc errors/tpc repair pending"),
    )
    failed = (
        _flag(section, "remapped rows/remapping failure occurred"),
        _flag(section, "ecc errors/unrepairable memory"),
    )
    return GpuHealth(
        pci_bus_id=pci_bus_id(_word(section, "pci/bus id")) or pci_bus_id(section.address),
        name=_word(section, "product name"),
        uuid=_word(section, "gpu uuid"),
        vbios=_word(section, "vbios version"),
        persistence=_flag(section, "persistence mode"),
        mig=_flag(section, "mig mode/current"),
        link=_link(section),
        host_max_speed_gt_per_s=_speed(section, "host max"),
        pcie_replays=_number(section, "pci/replays since reset"),
        bar1_total_bytes=_mebibytes(section, "bar1 memory usage/total"),
        memory_total_bytes=_mebibytes(section, "fb memory usage/total"),
        ecc_enabled=_flag(section, "ecc mode/current"),
        ecc_uncorrected_volatile=_errors(section, "volatile", corrected=False),
        ecc_corrected_volatile=_errors(section, "volatile", corrected=True),
        ecc_uncorrected_aggregate=_errors(section, "aggregate", corrected=False),
        remapped_rows_uncorrectable=_number(section, "remapped rows/uncorrectable error"),
        remap_pending=_any(pending),
        remap_failed=_any(failed),
        sram_threshold_exceeded=_flag(section, "ecc errors/aggregate/sram threshold exceeded"),
        performance_state=_matching(section, "performance state", r"P\d{1,2}$"),
        throttle_reasons=_throttle_reasons(section),
        throttled_seconds=_throttled_seconds(section),
        sm_clock_mhz=_number(section, "clocks/sm"),
        max_sm_clock_mhz=_number(section, "max clocks/sm"),
        power_limit_watts=_watts(section, "current power limit", "power limit"),
        default_power_limit_watts=_watts(section, "default power limit"),
        temperature_celsius=_number(section, "temperature/gpu current temp"),
        compute_mode=_word(section, "compute mode"),
        virtualization_mode=_word(section, "gpu virtualization mode/virtualization mode"),
        addressing_mode=_word(section, "addressing mode"),
        fabric_state=_word(section, "fabric/state"),
        fabric_status=_word(section, "fabric/status"),
        fabric_clique=_clique(section),
        fabric_troubles=_fabric_troubles(section),
        reset_required=_flag(section, "gpu reset status/reset required"),
        recovery_action=_word(section, "gpu recovery action"),
        is_lost=True if _is_lost(section) else None,
    )


def _is_lost(section: Section) -> bool:
    """Of a GPU that is gone the driver still knows where it was, and every question gets the same answer."""
    return any(value.casefold().startswith("gpu is lost") for value in section.values.values())


def _word(section: Section, *paths: str) -> str | None:
    """The first of the values that says something. `None` is an answer here: no virtualisation, no action."""
    for path in paths:
        value = section.values.get(path, "").strip()
        if value.casefold() == "none":
            return "None"
        if said(value) is not None and not _NO_ANSWER.match(value):
            return value
    return None


def _flag(section: Section, *paths: str) -> bool | None:
    word = _word(section, *paths)
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get((word or "").casefold())


def _any(flags: tuple[bool | None, ...]) -> bool | None:
    """Whether any of them is set; None where none of them is told."""
    told = [flag for flag in flags if flag is not None]
    return any(told) if told else None


def _number(section: Section, path: str) -> int | None:
    return whole_number(section.values.get(path))


def _mebibytes(section: Section, path: str) -> int | None:
    number = _number(section, path)
    return min(number, 1 << 40) * _MIB if number else None


def _watts(section: Section, *names: str) -> float | None:
    """A limit of the GPU itself: modules of Grace systems have a section of their own."""
    for part in ("gpu power readings", "power readings"):
        for name in names:
            match = re.match(r"(\d{1,6}(?:\.\d{1,6})?) W$", section.values.get(f"{part}/{name}", ""))
            if match is not None:
                return float(match.group(1))
    return None


def _matching(section: Section, path: str, pattern: str) -> str | None:
    word = _word(section, path)
    return word if word is not None and re.match(pattern, word) else None


def _version(text: str | None) -> str | None:
    match = re.match(r"\d{1,3}\.\d{1,3}", text or "")
    return match.group() if match else None


# --- PCI Express --------------------------------------------------------------------------------------------


def _link(section: Section) -> PcieLink | None:
    """None where nothing of it is told, as in virtual machines that hide the bus."""
    link = PcieLink(
        speed_gt_per_s=_speed(section, "device current") or _speed(section, "current"),
        max_speed_gt_per_s=_speed(section, "device max") or _speed(section, "max"),
        width=_width(section, "current"),
        max_width=_width(section, "max"),
    )
    return None if link == PcieLink() else link


def _speed(section: Section, name: str) -> float | None:
    return GT_PER_S.get(_number(section, f"pci/gpu link info/pcie generation/{name}") or 0)


def _width(section: Section, name: str) -> int | None:
    match = re.match(r"(\d{1,2})x?$", section.values.get(f"pci/gpu link info/link width/{name}", ""))
    return int(match.group(1)) or None if match else None


# --- ECC ----------------------------------------------------------------------------------------------------


def _errors(section: Section, era: str, *, corrected: bool) -> int | None:
    """The errors of one kind together; None where no counter of it is told.

    Until Volta there are sections `Single Bit` and `Double Bit` with a total; since Turing counters by memory, whose
    names end with what became of the errors.
    """
    counters = section.below(f"ecc errors/{era}")
    old = {name: value for name, value in counters.items() if "/" in name}
    if old:
        bits = "single bit" if corrected else "double bit"
        total = whole_number(old.get(f"{bits}/total"))
        if total is not None:
            return total
        chosen = [value for name, value in old.items() if name.startswith(bits)]
    else:
        chosen = [
            value
            for name, value in counters.items()
            if ("uncorrectable" not in name if corrected else "uncorrectable" in name)
            and "threshold" not in name
        ]
    numbers = [number for number in map(whole_number, chosen) if number is not None]
    # `1 << 62` is the most that a record holds
    return min(sum(numbers), 1 << 62) if numbers else None


# --- clocks and fabric --------------------------------------------------------------------------------------


def _throttle_reasons(section: Section) -> tuple[str, ...]:
    for part in ("clocks event reasons", "clocks throttle reasons"):
        reasons = section.below(part)
        if reasons:
            active = [name for name, value in reasons.items() if value.casefold() == "active"]
            return tuple(section.names[f"{part}/{name}"] for name in active[:20])
    return ()


def _throttled_seconds(section: Section) -> tuple[tuple[str, float], ...]:
    part = "clocks event reasons counters"
    found = []
    for name, value in section.below(part).items():
        microseconds = whole_number(value)
        if microseconds and value.endswith(" us"):
            found.append((section.names[f"{part}/{name}"], microseconds / 1e6))
    return tuple(found[:20])


def _clique(section: Section) -> str | None:
    cluster, clique = _word(section, "fabric/clusteruuid"), _word(section, "fabric/cliqueid")
    if cluster is None or clique is None or cluster == _NO_DOMAIN:
        return None
    return f"{cluster}.{clique}"


def _fabric_troubles(section: Section) -> tuple[str, ...]:
    troubles = []
    for name, value in section.below(_FABRIC_HEALTH).items():
        is_wrong = value.casefold() in _UNHEALTHY
        if name == "partition assigned":
            continue
        if name == "incorrect configuration":
            is_wrong = said(value) is not None and value.casefold() not in ("no", "false", "not supported")
        if is_wrong:
            troubles.append(f"{section.names[f'{_FABRIC_HEALTH}/{name}']}: {value}")
    return tuple(troubles[:10])


# --- asking and recognising ---------------------------------------------------------------------------------


def _with(scan: NodeScan, found: Health, what: str) -> NodeScan:
    for problem in found.problems:
        scan = with_absent(scan, what, problem)
    scan = with_gpus(scan, found.gpus, found.driver, found.cuda_driver)
    return with_health(scan, found.health)


def _tell_node(scan: NodeScan, gathered: Gathered) -> NodeScan:
    raw = gathered.output(*COMMAND)
    failure = raw.failure()
    # With one GPU lost the command fails and still describes the others.
    if failure is not None:
        scan = smi_errors.with_errors(with_absent(scan, "GPU health", failure), smi_errors.of_command(raw))
        if not recognise(raw.stdout):
            return scan
    return _with(scan, parse(raw.stdout), "GPU health")


def recognise(text: str) -> bool:
    """Whether a text is `nvidia-smi -q`, and no job's log that begins with it."""
    return "==NVSMI LOG==" in text and not is_of_a_job(text)


def _tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    return _with(scan, parse(text, file=file), file)


def _tell_table(scan: NodeScan, text: str, file: str) -> NodeScan:
    found = smi_table.parse(text, file=file)
    for problem in found.problems:
        scan = with_absent(scan, file, problem)
    scan = with_gpus(scan, found.gpus, found.driver, found.cuda_driver)
    return with_health(scan, found.health)


FACTS: tuple[Fact, ...] = (Fact("GPU health", _tell_node, commands=(Command(COMMAND),)),)
KINDS: tuple[SavedKind, ...] = (
    SavedKind("`nvidia-smi -q` output", recognise, _tell_saved),
    SavedKind(
        "`nvidia-smi` table", lambda text: smi_table.is_table(text) and not is_of_a_job(text), _tell_table
    ),
    SavedKind(
        "`nvidia-smi -L` output", lambda text: smi_table.is_list(text) and not is_of_a_job(text), _tell_table
    ),
    *smi_errors.KINDS,
)
