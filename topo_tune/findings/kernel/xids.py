"""What the NVIDIA driver's Xid numbers mean, and how bad each is for a node.

Numbers, meanings and what to do at once are those of NVIDIA's Xid catalogue. What needs a reset or a reboot is an error
here; what ends one application and leaves the GPU healthy is worth knowing.
"""

from __future__ import annotations

import msgspec

from topo_tune.records.finding import Severity

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

OFF_THE_BUS = 79
NVLINK_5 = range(144, 151)
RECOVERY_ACTION = 154

RESET = "drain the node and reset the GPU: `nvidia-smi --gpu-reset -i INDEX`, or reboot"
_RESTART = (
    "restart the application; if it comes back on the same GPU with other applications: `dcgmi diag -r 3`"
)
_APPLICATION = "look for the fault in the application first: `compute-sanitizer`, `CUDA_LAUNCH_BLOCKING=1`"
_WATCH = "nothing at once; tell the vendor if it comes back"


class Xid(msgspec.Struct, frozen=True):
    """One number."""

    meaning: str
    severity: Severity
    fix: str


def _error(meaning: str, fix: str = RESET) -> Xid:
    return Xid(meaning, Severity.ERROR, fix)


def _warning(meaning: str, fix: str = _RESTART) -> Xid:
    return Xid(meaning, Severity.WARNING, fix)


def _notice(meaning: str, fix: str = _APPLICATION) -> Xid:
    return Xid(meaning, Severity.NOTICE, fix)


_NVLINK_5_FIX = (
    "`nvidia-smi nvlink -e`, the fabric manager's log and SXid lines of that time tell which side it was; "
    "then reset the GPU"
)

XIDS: dict[int, Xid] = {
    8: _warning("GPU stopped processing"),
    11: _notice("invalid or corrupted push buffer stream"),
    13: _notice("graphics engine exception, as a rule an illegal access of the application"),
    25: _notice("invalid or illegal push buffer stream"),
    31: _notice("GPU memory page fault, as a rule an illegal access of the application"),
    32: _warning("invalid or corrupted push buffer stream, often the quality of the PCIe link"),
    37: _notice("driver firmware error"),
    38: _warning("driver firmware error", _WATCH),
    **{code: _warning("copy engine exception") for code in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85)},
    43: _notice("GPU stopped processing after a fault of the application; the GPU is healthy"),
    44: _warning("graphics engine fault during a context switch", _WATCH),
    45: _notice("clean-up after an application ended or another error", "look at the Xid before it"),
    46: _error("GPU stopped processing"),
    48: _error("uncorrectable memory error (double bit)"),
    54: _error("auxiliary power is not connected to the board", "check the board's power cables"),
    62: _error("halt of an internal micro-controller"),
    63: _warning("a memory row was remapped or a page retired; it takes effect at the next reset", RESET),
    64: _error("a memory row could not be remapped, or a page not retired"),
    66: _warning("illegal access by the driver", _WATCH),
    67: _warning("illegal access by the driver", _WATCH),
    68: _notice("video decoder exception", _RESTART),
    69: _notice("graphics engine class error"),
    74: _error("NVLink error: the link, or the device at its other end"),
    78: _warning("vGPU start error", "update the vGPU software"),
    80: _warning("corrupted data was sent to the GPU"),
    92: _warning("high rate of corrected memory errors", _WATCH),
    93: _notice("the InfoROM's wear limit was reached", _WATCH),
    94: _warning("contained memory error: one application was ended; reset the GPU when convenient", RESET),
    95: _error("uncontained memory error: all applications on the GPU are affected"),
    109: _error("context switch timeout"),
    110: _error("security fault"),
    119: _error("the GPU's system processor (GSP) does not answer"),
    120: _error("error in the GPU's system processor (GSP)"),
    121: _notice("corrected errors on the NVLink-C2C to the Grace CPU", _WATCH),
    136: _error("NVLink training failed"),
    137: _notice("illegal peer access over NVLink, as a rule of the application"),
    140: _error("unrecovered memory error"),
    141: _warning("CUDA fast path error", _WATCH),
    143: _error("GPU initialisation error"),
    144: _error("NVLink error (SAW)", _NVLINK_5_FIX),
    145: _error("NVLink error (RLW)", _NVLINK_5_FIX),
    146: _error("NVLink error (TLW)", _NVLINK_5_FIX),
    147: _error("NVLink error (TREX)", _NVLINK_5_FIX),
    148: _error("NVLink error (NVLPW_CTRL)", _NVLINK_5_FIX),
    149: _error("NVLink error (NETIR)", _NVLINK_5_FIX),
    150: _error("NVLink error (MSE)", _NVLINK_5_FIX),
    151: _warning("key rotation error", "restart the virtual machine"),
    RECOVERY_ACTION: _warning("the driver says what recovery other Xids need", "do what its text says"),
    155: _warning("an NVLink was taken down by software", RESET),
    156: _warning("parts of the GPU were retired; it takes effect at the next reset", RESET),
    157: _warning("parts of the GPU could not be retired; it may fail again", _WATCH),
    158: _error("GPU fatal timeout"),
    160: _notice("a memory channel was retired", _WATCH),
    161: _warning("a memory channel could not be retired", _WATCH),
    163: _notice("power smoothing was turned off", _WATCH),
    164: _notice("power smoothing nears the end of its life", _WATCH),
    165: _notice("power smoothing has reached the end of its life", _WATCH),
    167: _error("PCIe fatal timeout"),
    168: _warning("errors in protected memory with ECC off", "turn ECC on: `nvidia-smi -e 1`"),
    169: _error("halt of an internal micro-controller"),
    171: _error("uncorrectable error in DRAM"),
    172: _error("uncorrectable error in SRAM"),
}

UNKNOWN = _warning("see NVIDIA's catalogue", "look it up: " + CATALOGUE)
