"""The lines of a kernel log that matter to NCCL: by what words each is known, and what it is about.

A sign's pattern is matched at the beginning of the message, behind its time; its groups are the event's fields. What
`key` finds keeps events apart that have the same device: the library of a segfault, the complaint of a driver.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.hardware import KernelEventKind as Kind

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"


class Sign(msgspec.Struct, frozen=True):
    """One kind of line."""

    kind: Kind
    word: str
    """stands in every such line: lines with none of all words are not looked at, and do not leave a node"""
    pattern: re.Pattern[str]
    """groups: device, code, severity, key"""
    is_companion: bool = False
    """tells of an event that has a line of its own, as a rule; counts only where that one is missing"""


def _sign(kind: Kind, word: str, pattern: str, *, is_companion: bool = False) -> Sign:
    return Sign(kind, word, re.compile(pattern), is_companion)


_NIC_DRIVER = r"(?:mlx[45]_core|bnxt_en|ice|i40e|irdma|efa|hfi1|cxi_\w{1,10}|ionic|gve|ena)"
_XID = rf"NVRM: Xid \((?:PCI:)?(?P<device>{ADDRESS})[^)]{{0,40}}\): (?P<code>\d{{1,6}})\b"

SIGNS: tuple[Sign, ...] = (
    # The driver names NVLink 5's units and says whether an error of theirs is fatal.
    _sign(Kind.XID, "NVRM: Xid", _XID + r"(?:, \w{1,40} {1,3}(?P<severity>Fatal|Nonfatal)\b)?"),
    # The lines `Severity ...` and `Data {...}` belong to the one before.
    _sign(
        Kind.SXID,
        "SXid",
        rf"nvidia-nvswitch\d{{0,4}}: SXid \((?:PCI:)?(?P<device>{ADDRESS})\): (?P<code>\d{{1,6}}),"
        r" (?!Severity |Data )(?:(?P<severity>Fatal|Non-fatal))?",
    ),
    _sign(
        Kind.GPU_LOST,
        "fallen off the bus",
        rf"NVRM: .{{0,80}}?(?P<device>{ADDRESS}).{{0,80}}fallen off the bus",
    ),
    _sign(Kind.GPU_LOST, "fallen off the bus", r"NVRM: .{0,160}fallen off the bus"),
    _sign(
        Kind.AER,
        "PCIe Bus Error",
        rf"(?:\S{{1,40}} )?(?P<device>{ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
        r"(?P<severity>Correct\w{1,8}|Uncorrect\w{1,8} \([\w-]{1,12}\))",
    ),
    _sign(
        Kind.AER,
        "error received",
        rf"(?:\S{{1,40}} )?(?P<device>{ADDRESS}): AER: (?:Multiple )?"
        r"(?P<severity>Correct\w{1,8}|Uncorrect\w{1,8} \([\w-]{1,12}\)) error received",
        is_companion=True,
    ),
    _sign(
        Kind.AER,
        "error message received",
        rf"(?:\S{{1,40}} )?(?P<device>{ADDRESS}): AER: (?:Multiple )?"
        r"(?P<severity>Correct\w{1,8}|Uncorrect\w{1,8} \([\w-]{1,12}\)) error message received",
        is_companion=True,
    ),
    # Virtual machines without link registers are `limited by Unknown x0 link`.
    _sign(
        Kind.PCIE_BANDWIDTH,
        "available PCIe bandwidth, limited by",
        rf"(?:\S{{1,40}} )?(?P<device>{ADDRESS})(?: \S{{1,20}})?: .{{0,60}}available PCIe bandwidth, limited by"
        r" (?!Unknown|.{0,20} x0 )",
    ),
    _sign(
        Kind.NIC,
        "health compromised",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,80}}(?P<key>health compromised)",
    ),
    _sign(
        Kind.NIC,
        "atal error",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,80}}(?P<key>[Ff]atal error)",
    ),
    _sign(
        Kind.NIC,
        "Will cause a leak of a command resource",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,160}}(?P<key>Will cause a leak of a command resource)",
    ),
    _sign(
        Kind.NIC,
        "insufficient power",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,80}}(?P<key>insufficient power)",
    ),
    _sign(
        Kind.NIC,
        "High temperature on sensors",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,80}}(?P<key>High temperature on sensors)",
    ),
    _sign(
        Kind.NIC,
        "Port module event[error]",
        rf"{_NIC_DRIVER} (?P<device>{ADDRESS}): .{{0,80}}Port module event\[error\]: module \d{{1,3}},"
        r" (?P<key>[^\d]{1,80})",
    ),
    _sign(
        Kind.NIC,
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?:CPU: \d{1,5}: )?(?P<device>[\w.@-]{1,20}) .{0,60}(?P<key>timed out)",
    ),
    _sign(
        Kind.NIC,
        "dump error cqe",
        r"(?:infiniband )?(?P<device>[\w.-]{1,20}):.{0,80}(?P<key>dump error cqe)",
    ),
    _sign(
        Kind.NIC,
        "dump error cqe",
        rf"{_NIC_DRIVER[:-1]}|mlx5_ib) (?P<device>{ADDRESS}): .{{0,80}}(?P<key>dump error cqe)",
    ),
    *(
        _sign(
            Kind.LINK,
            word,
            rf"\S{{1,20}} {ADDRESS}:? (?P<device>[\w.@-]{{1,20}}): (?:\S{{1,20}} )?(?:\S{{1,20}} )?(?:NIC )?"
            r"Link (?:is )?(?P<severity>[Dd]own|[Uu]p)\b",
        )
        for word in ("Link down", "Link up", "Link is Down", "Link is Up", "Link is down", "Link is up")
    ),
    _sign(
        Kind.SEGFAULT,
        "segfault at",
        r"(?P<device>[^\[\]]{1,40})\[\d{1,10}\]: segfault at .{0,120}?(?: in (?P<key>[^\[\s]{1,80})\[.{0,80})?$",
    ),
    _sign(
        Kind.SEGFAULT,
        "general protection",
        r"(?:traps: )?(?P<device>[^\[\]]{1,40})\[\d{1,10}\] general protection .{0,120}?"
        r"(?: in (?P<key>[^\[\s]{1,80})\[.{0,80})?$",
    ),
    _sign(
        Kind.OUT_OF_MEMORY,
        "Killed process",
        r"(?:Memory cgroup out of memory: |Out of memory: )?Killed process \d{1,10} \((?P<device>[^)]{1,40})\)",
    ),
    _sign(
        Kind.HUNG_TASK,
        "blocked",
        r"(?:INFO: )?task (?P<device>.{1,40}?):\d{1,10} blocked (?:in I/O wait )?for more than \d{1,6} seconds",
    ),
    _sign(
        Kind.HUNG_TASK,
        "soft lockup",
        r"(?:NMI )?watchdog: BUG: soft lockup - CPU#\d{1,5} stuck for \d{1,6}s! \[(?P<device>[^\]]{1,40}?):\d{1,10}\]",
    ),
    _sign(
        Kind.IOMMU,
        "DMAR: [",
        r"DMAR: \[(?P<severity>DMA|INTR).{0,40}?[Rr]equest[ -]device \[?(?P<device>[0-9a-fA-F:.]{7,16})\]?",
    ),
    _sign(
        Kind.IOMMU,
        "AMD-Vi: Event logged [",
        r"\S{1,40} (?P<device>[0-9a-fA-F:.]{7,16}): AMD-Vi: Event logged \[(?P<severity>IO_PAGE_FAULT)\b",
    ),
    _sign(
        Kind.IOMMU,
        "AMD-Vi: Event logged [",
        r"AMD-Vi: Event logged \[(?P<severity>IO_PAGE_FAULT)(?: device=(?P<device>[0-9a-fA-F:.]{7,16}))?",
    ),
    _sign(
        Kind.IOMMU,
        "arm-smmu",
        r"arm-smmu\S{0,10} \S{1,40}: (?P<severity>Unhandled context fault|event 0x10 received|event: F_TRANSLATION)",
    ),
    _sign(Kind.IOMMU, "iommu: Default domain type", r"iommu: Default domain type: (?P<key>\w{1,20})"),
    *(
        _sign(
            Kind.DRIVER,
            word,
            rf"(?:NVRM|nvidia)(?=(?:.{{0,200}}?(?P<device>{ADDRESS}))?).{{0,200}}?(?P<key>{re.escape(word)})",
        )
        for word in (
            "RmInitAdapter failed",
            "API mismatch",
            "Rate limiting GSP RPC error prints",
            "probe routine failed",
            "request to query NVSwitch device information",
            "nv_get_p2p_free_callback",
            "needs to be reset",
        )
    ),
)
WORDS = tuple(dict.fromkeys(sign.word for sign in SIGNS))
