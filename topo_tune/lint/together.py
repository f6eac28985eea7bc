"""Settings that meet: contradictions, settings that another one makes idle, a file against its own purpose.

Each function is one rule over the settings that win; its docstring says where the rule comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from topo_tune.lint.algorithms import (
    ALGORITHMS,
    FUNCTIONS,
    PROTOCOLS,
    SCOPES_SINCE,
    SERVED_BY,
    SIMPLE_ONLY,
    left,
    parsed,
)
from topo_tune.lint.message import Format, Message, quoted
from topo_tune.lint.names import is_known
from topo_tune.lint.setting import Effective, Listing, Setting, Target, listed
from topo_tune.records.finding import Severity

Check = Callable[[Effective, Target], Iterator[Message]]
MOST_SOCKETS = 64
_STEPS = 8
_DEFAULT_BUFFER = 4194304
_PAIRS = (
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
    ("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"),
)
_SUCCESSORS = (
    ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS", "the higher wins"),
    ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "the lower wins"),
    ("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS", "NCCL ignores the old name"),
    ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS", "NCCL ignores the old name"),
)
_CHUNKS = ("NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE")
_OF_ONE_JOB = {
    "NCCL_COMM_ID": "the first rank of every job would listen at this one address",
    "NCCL_HOSTID": "hosts with the same value count as one, and jobs over two of them fail to start",
}


def together(listing: Listing, target: Target) -> Iterator[Message]:
    """Everything about settings that meet in one text."""
    for effective in listing.effective():
        for check in CHECKS:
            yield from check(effective, target)
    yield from duplicates(listing)
    yield from for_one_job(listing)


def duplicates(listing: Listing) -> Iterator[Message]:
    """A name set twice. In shell code that is everyday: branches, defaults."""
    if listing.format is Format.SHELL:
        return
    seen: dict[tuple[int, str], Setting] = {}
    for setting in (setting for setting in listing.settings if setting.is_read):
        first = seen.setdefault((setting.scope, setting.name), setting)
        if first is setting:
            continue
        wins = "the first wins" if listing.format is Format.CONF else "the last wins"
        same = " with the same value" if first.value == setting.value else ""
        text = f"{quoted(setting.name)} is set on line {first.line} already{same}; {wins}"
        yield setting.about_name("duplicate-name", text, "keep one of the lines")


def for_one_job(listing: Listing) -> Iterator[Message]:
    """What belongs to one job and stands in a file that all jobs of a node read."""
    if listing.format is not Format.CONF:
        return
    for setting in listing.settings:
        if setting.name in _OF_ONE_JOB and setting.value:
            text = f"{_OF_ONE_JOB[setting.name]}"
            yield setting.about_name("for-one-job", text, "export it for the one job that needs it")


def _min_above_max(settings: Effective, target: Target) -> Iterator[Message]:
    """src/graph/connect.cc, src/init.cc: the maximum wins."""
    for low, high in _PAIRS:
        minimum, maximum = settings.number(low), settings.number(high)
        if minimum is not None and maximum is not None and 0 < maximum < minimum:
            text = f"{low}={minimum} is above {high}={maximum}; NCCL keeps to the maximum"
            yield settings[low].about("min-above-max", text)


def _old_and_new(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst: what counts when both names are set."""
    for old, new, outcome in _SUCCESSORS:
        if old in settings and new in settings:
            text = f"{quoted(old)} and its successor {quoted(new)} are both set; {outcome}"
            yield settings[old].about_name("old-and-new-name", text, f"keep `{new}`")


def _sockets(settings: Effective, target: Target) -> Iterator[Message]:
    """src/transport/net_socket.cc: at most 64 sockets for a connection, and none without a thread."""
    threads, sockets = settings.number("NCCL_SOCKET_NTHREADS"), settings.number("NCCL_NSOCKS_PERTHREAD")
    if sockets is None:
        return
    setting = settings["NCCL_NSOCKS_PERTHREAD"]
    if threads is not None and threads > 0 and threads * sockets > MOST_SOCKETS:
        text = f"{threads} threads with {sockets} sockets each are more than {MOST_SOCKETS}; NCCL cuts the sockets"
        yield setting.about("too-many-sockets", text)
    if "NCCL_SOCKET_NTHREADS" not in settings and sockets > 0:
        text = "it counts only with `NCCL_SOCKET_NTHREADS` of at least 1; NCCL's own default is 0 outside of clouds"
        yield setting.about_name("sockets-without-threads", text)


def _p2p_level(settings: Effective, target: Target) -> Iterator[Message]:
    """src/graph/paths.cc, ncclGetLevel: the switch is asked first."""
    if settings.number("NCCL_P2P_DISABLE") == 1 and "NCCL_P2P_LEVEL" in settings:
        text = "`NCCL_P2P_DISABLE=1` beats it: P2P is off at every distance"
        yield settings["NCCL_P2P_LEVEL"].about_name("no-effect-here", text, "keep one of the two")


def _no_p2p_and_no_shm(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst, NCCL_SHM_DISABLE: then the network carries what passes between GPUs of one node."""
    if settings.number("NCCL_SHM_DISABLE") == 1 and _p2p_is_off(settings):
        text = "with P2P and shared memory off, GPUs of one node talk over the network"
        yield settings["NCCL_SHM_DISABLE"].about_name("network-between-gpus", text)


def _p2p_is_off(settings: Effective) -> bool:
    return settings.number("NCCL_P2P_DISABLE") == 1 or settings.word("NCCL_P2P_LEVEL") in ("loc", "0")


def _without_ib(settings: Effective, target: Target) -> Iterator[Message]:
    """src/transport/net_ib/init.cc: the network does not start, so nobody reads its settings."""
    word = settings.word("NCCL_NET")
    if settings.number("NCCL_IB_DISABLE") == 1:
        why = "`NCCL_IB_DISABLE=1`"
        if word == "ib":
            text = "`NCCL_NET=IB` with `NCCL_IB_DISABLE=1`: communicators fail to start"
            yield settings["NCCL_NET"].about("contradiction", text, "remove one of the two")
    elif word == "socket":
        why = "`NCCL_NET=Socket`"
    else:
        return
    idle = [s for s in settings.starting("NCCL_IB_") if s.name != "NCCL_IB_DISABLE" and is_known(s.name)]
    idle += settings.starting("NCCL_NET_GDR_", "NCCL_DMABUF_ENABLE")
    if idle:
        verb = "has" if len(idle) == 1 else "have"
        text = f"{listed(idle)} {verb} no effect with {why}, unless a plugin reads them too"
        yield idle[0].about_name("no-effect-here", text)


def _socket_settings_over_ib(settings: Effective, target: Target) -> Iterator[Message]:
    """The sockets' threads carry data only where the network is Socket."""
    idle = settings.starting("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    if settings.word("NCCL_NET") == "ib" and idle:
        verb = "has" if len(idle) == 1 else "have"
        yield idle[0].about_name("no-effect-here", f"{listed(idle)} {verb} no effect with `NCCL_NET=IB`")


def _cumem(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst, NCCL_MNNVL_ENABLE: needs NCCL_CUMEM_ENABLE; NVIDIA/nccl issue 2106 for the host's memory."""
    if settings.number("NCCL_CUMEM_ENABLE") != 0:
        return
    if settings.number("NCCL_MNNVL_ENABLE") == 1:
        text = "multi-node NVLink needs cuMem, and `NCCL_CUMEM_ENABLE=0` takes it away: communicators fail to start"
        yield settings["NCCL_MNNVL_ENABLE"].about("contradiction", text, "remove `NCCL_CUMEM_ENABLE=0`")
    for name, what in (
        ("NCCL_WIN_ENABLE", "window registration"),
        ("NCCL_CUMEM_HOST_ENABLE", "cuMem for host memory"),
    ):
        if settings.number(name) == 1:
            text = f"{what} needs cuMem, and `NCCL_CUMEM_ENABLE=0` takes it away"
            yield settings[name].about_name("no-effect-here", text)


def _nvls_off(settings: Effective, target: Target) -> Iterator[Message]:
    """src/transport/nvls.cc: nothing is set up with NCCL_NVLS_ENABLE=0."""
    if settings.number("NCCL_NVLS_ENABLE") != 0:
        return
    named = _named_algorithms(settings) & {"nvls", "nvlstree"}
    if named:
        text = f"it names {', '.join(sorted(named))}, and `NCCL_NVLS_ENABLE=0` takes that away"
        yield settings["NCCL_ALGO"].about("contradiction", text, "remove one of the two")
    idle = settings.starting("NCCL_NVLS_NCHANNELS", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_")
    if idle:
        text = f"no effect with `NCCL_NVLS_ENABLE=0`: {listed(idle)}"
        yield idle[0].about_name("no-effect-here", text)


def _collnet_off(settings: Effective, target: Target) -> Iterator[Message]:
    """src/init.cc: CollNet is off unless NCCL_COLLNET_ENABLE (or the program's configuration) asks for it."""
    named = _named_algorithms(settings) & {"collnet", "collnetdirect", "collnetchain"}
    if named and settings.number("NCCL_COLLNET_ENABLE") != 1:
        text = f"it names {', '.join(sorted(named))}, which needs `NCCL_COLLNET_ENABLE=1`"
        yield settings["NCCL_ALGO"].about("no-effect-here", text)


def _named_algorithms(settings: Effective) -> set[str]:
    value = settings.word("NCCL_ALGO")
    return {word for group in parsed(value or "") if not group.inverted for word in group.words}


def _algorithm_and_protocol(settings: Effective, target: Target) -> Iterator[Message]:
    """src/graph/tuning.cc: NVLS, CollNet and PAT know Simple only; from 2.24 on nothing else is tried."""
    algorithms, protocols = settings.word("NCCL_ALGO"), settings.word("NCCL_PROTO")
    if not algorithms or not protocols or target.version < SCOPES_SINCE:
        return
    by_algorithm = left(parsed(algorithms), frozenset(ALGORITHMS))
    by_protocol = left(parsed(protocols), frozenset(PROTOCOLS))
    empty = []
    for function in FUNCTIONS:
        usable = by_algorithm[function] & SERVED_BY[function]
        if (
            usable
            and by_protocol[function]
            and "simple" not in by_protocol[function]
            and usable <= SIMPLE_ONLY
        ):
            empty.append(function)
    if empty:
        text = f"the algorithms that `NCCL_ALGO` leaves for {', '.join(empty)} know only Simple"
        yield settings["NCCL_PROTO"].about("nothing-left", text, "leave Simple in the list")


def _ll128(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst, NCCL_PROTO: on hardware that does not keep 128 bytes together, LL128 corrupts data."""
    setting = settings.get("NCCL_PROTO")
    if setting is None or not setting.is_plain or not setting.value.strip():
        return
    groups = parsed(settings.word("NCCL_PROTO") or "")
    if not any(("ll128" in group.words) != group.inverted for group in groups):
        return
    how = "a `^` list that leaves LL128 in" if any(g.inverted for g in groups) else "naming LL128"
    text = f"{how} turns LL128 on without asking whether the hardware keeps its data whole"
    # Google asks for it on A3 Mega: gpudirect-tcpxo/README.md in GoogleCloudPlatform/container-engine-accelerators.
    asked_for = settings.starting("NCCL_FASTRAK_")
    mild = Severity.NOTICE if asked_for else None
    hint = (
        "Google asks for it on A3 Mega; nowhere else"
        if asked_for
        else "to leave LL128 to NCCL, do not name it"
    )
    yield setting.about("ll128-forced", text, hint, severity=mild)


def _chunks(settings: Effective, target: Target) -> Iterator[Message]:
    """src/init.cc: a chunk of send and receive is at most an eighth of the buffer. NCCL_CHUNK_SIZE is not cut."""
    buffer = settings.number("NCCL_BUFFSIZE")
    if buffer is None and "NCCL_BUFFSIZE" in settings:
        return
    most = (buffer or _DEFAULT_BUFFER) // _STEPS
    of = "of `NCCL_BUFFSIZE`" if buffer else "of the default buffer"
    for name in _CHUNKS:
        size = settings.number(name)
        if size is not None and size > most:
            text = f"{size} is more than an eighth {of}; NCCL takes {most}"
            yield settings[name].about("chunk-cut", text, f"`NCCL_BUFFSIZE={size * _STEPS}` would let it be")
    size = settings.number("NCCL_CHUNK_SIZE")
    if size is not None and size > most:
        text = f"{size} is more than an eighth {of}, and NCCL does not check"
        yield settings["NCCL_CHUNK_SIZE"].about("risky-value", text, f"{most} at most")


def _tuner(settings: Effective, target: Target) -> Iterator[Message]:
    """src/plugin/tuner.cc: NCCL_ALGO and NCCL_PROTO are applied to the table before the plugin sees it."""
    plugin = settings.word("NCCL_TUNER_PLUGIN")
    tables = settings.starting("NCCL_TUNER_CONFIG_FILE", "NCCL_TUNER_CONFIG_PATH")
    forced = settings.starting("NCCL_ALGO", "NCCL_PROTO")
    if tables and plugin == "none":
        text = "no plugin reads it with `NCCL_TUNER_PLUGIN=none`"
        yield tables[0].about_name("no-effect-here", text)
    elif tables and plugin is None and "NCCL_TUNER_PLUGIN" not in settings:
        text = "a tuner plugin reads it, and this text names none: NCCL then looks for `libnccl-tuner.so`"
        yield tables[0].about_name("tuner-file-alone", text, "set `NCCL_TUNER_PLUGIN` beside it")
    if plugin is not None and plugin != "none" and forced:
        verb = "narrows" if len(forced) == 1 else "narrow"
        text = f"{listed(forced)} {verb} what the tuner plugin may choose, at every size"
        yield forced[0].about_name("tuner-overruled", text, "leave the choice to the plugin")


def _policy(settings: Effective, target: Target) -> Iterator[Message]:
    """src/init.cc: the path for EFFICIENCY is skipped when an algorithm or protocol is forced."""
    forced = settings.starting("NCCL_ALGO", "NCCL_PROTO")
    if forced and settings.word("NCCL_CTA_POLICY") in ("efficiency", "1"):
        text = (
            f"no effect while {listed(forced)} is set"
            if len(forced) == 1
            else f"no effect with {listed(forced)}"
        )
        yield settings["NCCL_CTA_POLICY"].about_name("no-effect-here", text)


def _gid(settings: Effective, target: Target) -> Iterator[Message]:
    """src/transport/net_ib/connect.cc: these choose among GIDs only while the index is automatic."""
    index = settings.number("NCCL_IB_GID_INDEX")
    idle = settings.starting("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE")
    if index is not None and index >= 0 and idle:
        verb = "is" if len(idle) == 1 else "are"
        text = f"{listed(idle)} {verb} not asked with `NCCL_IB_GID_INDEX={index}`"
        yield idle[0].about_name("no-effect-here", text, "remove the index to have it chosen by them")


def _split(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst: splitting needs more than one queue pair."""
    pairs = settings.number("NCCL_IB_QPS_PER_CONNECTION")
    if settings.number("NCCL_IB_SPLIT_DATA_ON_QPS") == 1 and (pairs == 1):
        text = "there is one queue pair for each connection, and nothing to split over"
        yield settings["NCCL_IB_SPLIT_DATA_ON_QPS"].about_name("no-effect-here", text)


def _adaptive_routing(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst: a threshold above the buffer switches adaptive routing off; NCCL_IB_OOO_RQ voids it."""
    threshold = settings.number("NCCL_IB_AR_THRESHOLD")
    if threshold is None:
        return
    setting = settings["NCCL_IB_AR_THRESHOLD"]
    buffer = settings.number("NCCL_BUFFSIZE") or _DEFAULT_BUFFER
    if settings.number("NCCL_IB_ADAPTIVE_ROUTING") == 1 and threshold > buffer:
        text = f"{threshold} is more than the buffer, which switches adaptive routing off"
        yield setting.about("contradiction", text, "remove it, or `NCCL_IB_ADAPTIVE_ROUTING=1`")
    if settings.number("NCCL_IB_OOO_RQ") == 1:
        yield setting.about_name("no-effect-here", "no effect with `NCCL_IB_OOO_RQ=1`")


def _pxn(settings: Effective, target: Target) -> Iterator[Message]:
    """src/graph/paths.cc: no PXN, whatever its level."""
    level = settings.number("NCCL_P2P_PXN_LEVEL")
    if settings.number("NCCL_PXN_DISABLE") == 1 and level:
        text = "no effect with `NCCL_PXN_DISABLE=1`"
        yield settings["NCCL_P2P_PXN_LEVEL"].about_name("no-effect-here", text)


def _stream_ordering(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst, NCCL_GRAPH_STREAM_ORDERING: not supported together with graph mixing."""
    off, mixing = settings.number("NCCL_GRAPH_STREAM_ORDERING"), settings.number("NCCL_GRAPH_MIXING_SUPPORT")
    if off == 0 and mixing == 1:
        text = "NVIDIA does not support it together with `NCCL_GRAPH_MIXING_SUPPORT=1`"
        yield settings["NCCL_GRAPH_STREAM_ORDERING"].about("contradiction", text, "remove one of the two")


def _subsystems(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst: NCCL_DEBUG_SUBSYS filters what NCCL_DEBUG=INFO prints."""
    level = settings.word("NCCL_DEBUG")
    if level in ("version", "warn") and "NCCL_DEBUG_SUBSYS" in settings:
        text = f"it filters the lines of `NCCL_DEBUG=INFO`; with {level.upper()} there are none"
        yield settings["NCCL_DEBUG_SUBSYS"].about_name("no-effect-here", text, severity=Severity.NOTICE)


def _output_files(settings: Effective, target: Target) -> Iterator[Message]:
    """env.rst, NCCL_DEBUG_FILE: a name that is not unique among processes loses output."""
    log = settings.get("NCCL_DEBUG_FILE")
    is_file = log is not None and log.is_plain and log.value.strip() and not log.value.startswith("/dev/")
    if log is not None and is_file and "%p" not in log.value:
        text = f"every process writes over {quoted(log.value)}"
        yield log.about("shared-output-file", text, "put `%h` and `%p` into the name")
    topology, dump = settings.get("NCCL_TOPO_FILE"), settings.get("NCCL_TOPO_DUMP_FILE")
    if topology is not None and dump is not None and topology.value == dump.value and dump.value:
        text = "NCCL writes over the file that `NCCL_TOPO_FILE` reads"
        yield dump.about("shared-output-file", text, "dump to another file")


CHECKS: tuple[Check, ...] = (
    _min_above_max,
    _old_and_new,
    _sockets,
    _p2p_level,
    _no_p2p_and_no_shm,
    _without_ib,
    _socket_settings_over_ib,
    _cumem,
    _nvls_off,
    _collnet_off,
    _algorithm_and_protocol,
    _ll128,
    _chunks,
    _tuner,
    _policy,
    _gid,
    _split,
    _adaptive_routing,
    _pxn,
    _stream_ordering,
    _subsystems,
    _output_files,
)
