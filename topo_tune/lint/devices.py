"""Lists of network devices: NCCL_IB_HCA and NCCL_SOCKET_IFNAME.

Source: NVIDIA/nccl src/misc/utils.cc (parseStringList), src/misc/socket.cc, src/transport/net_ib/init.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.lint.message import Message, quoted
from topo_tune.lint.setting import Setting, Target

RAILS_SINCE = (2, 30, 7)
MOST_DEVICES = 32
_PORT = re.compile(r"[0-9]+")
_ENDS_IN_DIGIT = re.compile(r"(?:^|[^0-9])(?<!\bmlx)[1-9]$")
"""`mlx5_1` takes `mlx5_10` as well; nobody names a card `mlx5_00`, and `mlx5` alone means all of the family."""


def check_devices(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    """Everything about one list of devices."""
    marks = re.match(r"\^?=?", value)
    mark = marks.group() if marks else ""
    rest = value[len(mark) :]
    if rest.startswith("^"):
        text = f"the order is `^=`: {quoted(value)} looks for a device whose name begins with `^`"
        yield setting.about("misplaced-mark", text, f"write {quoted('^=' + rest[1:])}")
        return
    items = rest.split(",")
    for position, item in enumerate(items):
        yield from _item(setting, item, position, mark, target)
    if len(items) > MOST_DEVICES and setting.name == "NCCL_IB_HCA":
        text = f"{len(items)} devices; NCCL reads {MOST_DEVICES} and drops the rest"
        yield setting.about("out-of-range", text)
    prefixes = [item.split(":")[0] for item in items] if "=" not in value else []
    longer = [prefix for prefix in prefixes if _ENDS_IN_DIGIT.search(prefix)]
    if longer:
        text = f"without `=` a name stands for all that begin so: {quoted(longer[0])} takes `{longer[0][:40]}0` too"
        exact = mark + "=" + rest
        yield setting.about("prefix-match", text, f"for these devices only: {quoted(exact)}")


def _item(setting: Setting, item: str, position: int, mark: str, target: Target) -> Iterator[Message]:
    if position and item[:1] in ("^", "="):
        text = f"a mark counts only in front of the whole list; {quoted(item)} matches no device"
        yield setting.about("misplaced-mark", text, f"the {quoted(mark or item[:1])} in front holds for all")
    elif item != item.strip() or " " in item:
        text = f"the space is a part of the name: {quoted(item)} matches no device"
        yield setting.about("list-item", text, "write the list without spaces")
    elif not item:
        yield setting.about("list-item", "an empty item between commas", "remove the comma")
    elif setting.name == "NCCL_IB_HCA":
        yield from _fields(setting, item, target)
    elif len(item) == 1 and not mark:
        yield setting.about("list-item", f"NCCL ignores a value of one character: {quoted(item)}")


def _fields(setting: Setting, item: str, target: Target) -> Iterator[Message]:
    _, *fields = item.split(":")
    bad = [field for field in fields[:1] if not _PORT.fullmatch(field)]
    if bad:
        yield setting.about("list-item", f"{quoted(bad[0])} in {quoted(item)} is no port number")
    elif len(fields) > 1 and target.version < RAILS_SINCE:
        text = f"{target.nccl} reads `device:port`; rail and plane came with 2.30.7"
        yield setting.about("list-item", text, f"write {quoted(':'.join(item.split(':')[:2]))}")
    elif len(fields) > 3:
        text = f"{quoted(item)} has more than `device:port:rail:plane`"
        yield setting.about("list-item", text)
