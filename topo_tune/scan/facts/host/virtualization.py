"""Whether a node is a virtual machine, and whether the session is in a container: what several witnesses say."""

from __future__ import annotations

import re

from topo_tune.scan.facts.fact import Command, Files, Gathered

DETECT_MACHINE = Command(("systemd-detect-virt", "--vm"))
DETECT_CONTAINER = Command(("systemd-detect-virt", "--container"))
XEN = Files("/sys/hypervisor/type", limit_bytes=32)
VENDOR = Files("/sys/class/dmi/id/sys_vendor", limit_bytes=128)
PRODUCT = Files("/sys/class/dmi/id/product_name", limit_bytes=128)
FIRST_PROCESS = Files("/proc/1/cgroup", limit_bytes=2048)
OWN_PROCESS = Files("/proc/self/cgroup", limit_bytes=2048)
MARKS = (
    (Files("/run/.containerenv", mode="exists"), "podman"),
    (Files("/.singularity.d", mode="exists"), "apptainer"),
    (Files("/.dockerenv", mode="exists"), "docker"),
)
SERVICE_ACCOUNT = Files("/run/secrets/kubernetes.io", mode="exists")
KUBERNETES = "KUBERNETES_SERVICE_HOST"

FILES = (XEN, VENDOR, PRODUCT, FIRST_PROCESS, OWN_PROCESS, *(files for files, _ in MARKS), SERVICE_ACCOUNT)

# By the vendor that a hypervisor writes into the firmware tables of its guests (systemd: src/basic/virt.c).
_VIRTUAL_VENDORS = (
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Google", "google"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Alibaba Cloud", "kvm"),
    ("Tencent Cloud", "kvm"),
    ("Hetzner", "kvm"),
    ("DigitalOcean", "kvm"),
    ("Nebius", "kvm"),
    ("oVirt", "kvm"),
)
_CGROUP_WORDS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("/lxc", "lxc"),
    ("containerd", "containerd"),
)
_WORD = re.compile(r"[a-z][a-z0-9-]{1,30}")


def hypervisor(gathered: Gathered) -> str | None:
    """`kvm`, `microsoft`, ...; `none` on bare metal; None where nobody tells."""
    # It exits with status 1 where it says `none`.
    said = gathered.output(*DETECT_MACHINE.argv).stdout.strip()
    if _WORD.fullmatch(said):
        return said
    if _one(gathered, XEN) == "xen":
        return "xen"
    return _by_firmware(_one(gathered, VENDOR), _one(gathered, PRODUCT))


def container(gathered: Gathered) -> str | None:
    """`kubernetes`, `docker`, ...; `none` outside of one; None where nobody tells."""
    groups = "\n".join(_one(gathered, files) for files in (OWN_PROCESS, FIRST_PROCESS))
    marked = next((name for files, name in MARKS if gathered.texts(files.pattern)), None)
    if is_in_kubernetes(gathered) and (marked or "kubepods" in groups):
        return "kubernetes"
    if marked is not None:
        return marked
    found = next((name for word, name in _CGROUP_WORDS if word in _one(gathered, OWN_PROCESS)), None)
    said = gathered.output(*DETECT_CONTAINER.argv).stdout.strip()
    if found is not None or _WORD.fullmatch(said):
        return found or said
    return "none" if "/init.scope" in groups else None


def is_in_kubernetes(gathered: Gathered) -> bool:
    """Whether this session was started in a pod."""
    return any(name == KUBERNETES for name, _ in gathered.environment) or bool(
        gathered.texts(SERVICE_ACCOUNT.pattern)
    )


def machine(gathered: Gathered) -> str | None:
    """Vendor and product as the firmware names them: `NVIDIA DGXH100`."""
    words = (_one(gathered, VENDOR), _one(gathered, PRODUCT))
    return " ".join(" ".join(words).split())[:120] or None


def _by_firmware(vendor: str, product: str) -> str | None:
    if vendor == "Microsoft Corporation":
        return "microsoft" if product == "Virtual Machine" else None
    if vendor == "Amazon EC2":
        return "none" if ".metal" in product else "amazon"
    return next((name for word, name in _VIRTUAL_VENDORS if vendor.startswith(word)), None)


def _one(gathered: Gathered, files: Files) -> str:
    return gathered.texts(files.pattern).get(files.pattern, "").strip()
