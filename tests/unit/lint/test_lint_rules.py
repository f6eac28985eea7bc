"""Every rule of lint: a text in which it fires, and the nearest one in which it must not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from topo_tune.lint.check import LONGEST_TEXT, lint
from topo_tune.lint.message import Format, Message
from topo_tune.lint.rules import RULES
from topo_tune.lint.setting import Target
from topo_tune.records.finding import Severity

MILDER_OR_WORSE = {"framework-name", "missing-path"}
"""In nccl.conf a framework's name is in the wrong place; a missing graph file ends a job."""

LIBRARY = frozenset({"NCCL_DEBUG", "NCCL_ALGO"})


class Case(NamedTuple):
    """A text, and how it is read."""

    text: str
    format: Format = Format.CONF
    nccl: tuple[int, ...] = (2, 30, 7)
    library: frozenset[str] | None = None
    there: frozenset[str] | None = None


def conf(*lines: str, **how: Any) -> Case:
    return Case("".join(f"{line}\n" for line in lines), **how)


def shell(*lines: str) -> Case:
    return conf(*lines, format=Format.SHELL)


FIRES: dict[str, Case] = {
    "file-cut": conf("NCCL_DEBUG=WARN", "#" * LONGEST_TEXT),
    "nothing-found": conf("PATH=/usr/bin"),
    "no-equals-sign": conf("NCCL_DEBUG WARN"),
    "export-in-conf": conf("export NCCL_DEBUG=WARN"),
    "space-around-name": conf("NCCL_DEBUG =WARN"),
    "quoted-name": conf('"NCCL_DEBUG=WARN"'),
    "comment-too-new": conf("# NCCL_DEBUG=WARN", nccl=(2, 26)),
    "carriage-return": Case("NCCL_NET=IB\r\n", nccl=(2, 28, 9)),
    "byte-order-mark": Case("\ufeffNCCL_DEBUG=WARN\n"),
    "nul-byte": Case("NCCL_NET=I\0B\n"),
    "too-long": conf("NCCL_NET_PLUGIN=/" + "a" * 1023),
    "duplicate-name": conf("NCCL_CROSS_NIC=0", "NCCL_CROSS_NIC=1"),
    "not-exported": shell("NCCL_DEBUG=WARN", "python train.py"),
    "export-splits-comma": shell("srun --export=ALL,NCCL_SOCKET_IFNAME=eth0,eth1 ./a"),
    "missing-comma": conf('"NCCL_DEBUG=WARN",', '"NCCL_NET=IB"', '"NCCL_IB_SL=1",', format=Format.ARGS),
    "yaml-value-not-text": conf("- name: NCCL_IB_SL", "  value: 1", format=Format.YAML),
    "misspelt-name": conf("NCCL_IB_TIMOUT=22"),
    "unknown-name": conf("NCCL_FLUX_CAPACITOR=1"),
    "misnomer": conf("NCCL_BUFFER_SIZE=4194304"),
    "lower-case-name": conf("nccl_debug=WARN"),
    "removed-name": conf("NCCL_LL_THRESHOLD=0"),
    "renamed-name": conf("NCCL_IB_GDR_LEVEL=PHB"),
    "too-new-name": conf("NCCL_IB_OOO_RQ=0", nccl=(2, 29, 7)),
    "deprecated-name": conf("NCCL_MAX_NCHANNELS=16"),
    "not-in-library": conf("NCCL_CROSS_NIC=0", library=LIBRARY),
    "framework-name": conf("NCCL_ASYNC_ERROR_HANDLING=1"),
    "plugin-name": conf("NCCL_FASTRAK_NUM_FLOWS=2"),
    "not-nccl-name": conf("NCCL_DEBUG=WARN", "UCX_TLS=rc"),
    "conf-file-in-file": conf("NCCL_CONF_FILE=/shared/nccl.conf"),
    "empty-value": conf("NCCL_DEBUG="),
    "quotes-kept": conf('NCCL_NET="IB"'),
    "inline-comment": conf("NCCL_NET=IB # not TCP"),
    "space-around-value": conf("NCCL_NET=IB "),
    "unexpanded": conf("NCCL_NET_PLUGIN={{hpcx_path}}"),
    "percent-not-expanded": conf("NCCL_TOPO_DUMP_FILE=/tmp/topo.%h.xml"),
    "tilde-not-expanded": conf("NCCL_TOPO_FILE=~/topo.xml"),
    "relative-path": conf("NCCL_TOPO_FILE=topo.xml"),
    "missing-path": conf("NCCL_GRAPH_FILE=/opt/graph.xml", there=frozenset()),
    "number-suffix": conf("NCCL_BUFFSIZE=4M"),
    "boolean-word": conf("NCCL_IB_DISABLE=true"),
    "not-a-number": conf("NCCL_IB_TIMEOUT=long"),
    "octal-number": conf("NCCL_IB_TIMEOUT=022"),
    "number-overflow": conf("NCCL_BUFFSIZE=99999999999999999999"),
    "value-not-allowed": conf("NCCL_NET_GDR_LEVEL=phb"),
    "out-of-range": conf("NCCL_MAX_CTAS=65"),
    "odd-size": conf("NCCL_BUFFSIZE=4194305"),
    "odd-threads": conf("NCCL_NTHREADS=100"),
    "legacy-level-number": conf("NCCL_P2P_LEVEL=3"),
    "unknown-token": conf("NCCL_ALGO=Rings"),
    "token-too-new": conf("NCCL_ALGO=ring,pat", nccl=(2, 22, 3)),
    "scope-too-new": conf("NCCL_ALGO=allreduce:ring", nccl=(2, 23, 4)),
    "scope-missing": conf("NCCL_ALGO=allreduce:tree;ring"),
    "scope-unknown": conf("NCCL_ALGO=all_reduce:tree"),
    "misplaced-mark": conf("NCCL_IB_HCA==mlx5_0,=mlx5_1"),
    "nothing-left": conf("NCCL_ALGO=Tree"),
    "ll128-forced": conf("NCCL_PROTO=^LL"),
    "list-item": conf("NCCL_SOCKET_IFNAME==eth0, eth1"),
    "prefix-match": conf("NCCL_IB_HCA=mlx5_1"),
    "min-above-max": conf("NCCL_MIN_CTAS=32", "NCCL_MAX_CTAS=16"),
    "old-and-new-name": conf("NCCL_MIN_NCHANNELS=4", "NCCL_MIN_CTAS=8"),
    "too-many-sockets": conf("NCCL_SOCKET_NTHREADS=16", "NCCL_NSOCKS_PERTHREAD=8"),
    "sockets-without-threads": conf("NCCL_NSOCKS_PERTHREAD=4"),
    "no-effect-here": conf("NCCL_IB_DISABLE=1", "NCCL_IB_TIMEOUT=22"),
    "contradiction": conf("NCCL_CUMEM_ENABLE=0", "NCCL_MNNVL_ENABLE=1"),
    "chunk-cut": conf("NCCL_P2P_NET_CHUNKSIZE=1048576"),
    "tuner-overruled": conf("NCCL_TUNER_PLUGIN=libnccl-tuner.so", "NCCL_ALGO=ring"),
    "tuner-file-alone": conf("NCCL_TUNER_CONFIG_FILE=/opt/tuner.csv"),
    "network-between-gpus": conf("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"),
    "risky-value": conf("NCCL_GDR_FLUSH_DISABLE=1"),
    "verbose-log": conf("NCCL_DEBUG=INFO"),
    "shared-output-file": conf("NCCL_DEBUG_FILE=/tmp/nccl.log"),
    "for-one-job": conf("NCCL_COMM_ID=10.0.0.1:2345"),
    "must-match": conf("NCCL_ALGO=ring"),
    "debugging-only": conf("NCCL_NET_GDR_LEVEL=PHB"),
}

QUIET: dict[str, Case] = {
    "file-cut": conf("NCCL_DEBUG=WARN", "#" * 1000),
    "nothing-found": conf("# nothing is set here"),
    "no-equals-sign": conf("# a comment without it", "", "NCCL_DEBUG=WARN"),
    "export-in-conf": shell("export NCCL_DEBUG=WARN"),
    "space-around-name": conf("NCCL_DEBUG=WARN"),
    "quoted-name": conf('"NCCL_DEBUG=WARN",', format=Format.ARGS),
    "comment-too-new": conf("# NCCL_DEBUG=WARN", nccl=(2, 26, 2)),
    "carriage-return": Case("NCCL_NET=IB\n", nccl=(2, 28, 9)),
    "byte-order-mark": Case("# \ufeff\nNCCL_DEBUG=WARN\n"),
    "nul-byte": conf("NCCL_NET=IB"),
    "too-long": conf("NCCL_NET_PLUGIN=/" + "a" * 1022),
    "duplicate-name": shell("export NCCL_CROSS_NIC=0", "export NCCL_CROSS_NIC=1"),
    "not-exported": shell("NCCL_DEBUG=WARN", "export NCCL_DEBUG", "NCCL_ALGO=ring python train.py"),
    "export-splits-comma": shell("srun --export=ALL,NCCL_NET=IB,HOME,NCCL_IB_SL=1 ./a"),
    "missing-comma": conf('"NCCL_DEBUG=WARN",', '"NCCL_NET=IB",', '"NCCL_IB_SL=1"', format=Format.ARGS),
    "yaml-value-not-text": conf("- name: NCCL_IB_SL", '  value: "1"', format=Format.YAML),
    "misspelt-name": conf("NCCL_IB_TIMEOUT=22"),
    "unknown-name": conf("NCCL_FLUX_CAPACITOR=1", library=frozenset({"NCCL_FLUX_CAPACITOR"})),
    "misnomer": conf("NCCL_BUFFSIZE=4194304"),
    "lower-case-name": shell("nccl_tests=/opt/nccl-tests"),
    "removed-name": conf("NCCL_LL_THRESHOLD=0", nccl=(2, 4, 8)),
    "renamed-name": conf("NCCL_NET_GDR_LEVEL=PHB"),
    "too-new-name": conf("NCCL_IB_OOO_RQ=0", nccl=(2, 30, 3)),
    "deprecated-name": conf("NCCL_MAX_CTAS=16"),
    "not-in-library": conf("NCCL_DEBUG=WARN", "NCCL_SOCKET_MAGIC=0x1234", library=LIBRARY),
    "framework-name": shell("export TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
    "plugin-name": conf("NCCL_SOCKET_IFNAME=eth0"),
    "not-nccl-name": shell("export NCCL_DEBUG=WARN", "export UCX_TLS=rc"),
    "conf-file-in-file": shell("export NCCL_CONF_FILE=/shared/nccl.conf"),
    "empty-value": conf("NCCL_DEBUG_TIMESTAMP_FORMAT="),
    "quotes-kept": shell('export NCCL_NET="IB"'),
    "inline-comment": shell("export NCCL_NET=IB # not TCP"),
    "space-around-value": conf("NCCL_NET=AWS Libfabric"),
    "unexpanded": shell("export NCCL_NET_PLUGIN=${PLUGIN}"),
    "percent-not-expanded": conf("NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log"),
    "tilde-not-expanded": shell("export NCCL_TOPO_FILE=~/topo.xml"),
    "relative-path": conf("NCCL_TOPO_FILE=/opt/topo.xml"),
    "missing-path": conf("NCCL_GRAPH_FILE=/opt/graph.xml", there=frozenset({"/opt/graph.xml"})),
    "number-suffix": conf("NCCL_BUFFSIZE=4194304"),
    "boolean-word": conf("NCCL_IB_DISABLE=1"),
    "not-a-number": conf("NCCL_IB_TIMEOUT=0x16"),
    "octal-number": conf("NCCL_CROSS_NIC=0"),
    "number-overflow": conf("NCCL_SOCKET_MAGIC=0xffffffffffffffff"),
    "value-not-allowed": conf("NCCL_NET_GDR_LEVEL=PHB", "NCCL_DEBUG=warn", "NCCL_NET_GDR_READ=-2"),
    "out-of-range": conf("NCCL_IB_TIMEOUT=31", "NCCL_IB_TC=-1"),
    "odd-size": conf("NCCL_BUFFSIZE=8388608"),
    "odd-threads": conf("NCCL_NTHREADS=256"),
    "legacy-level-number": conf("NCCL_P2P_LEVEL=NVL"),
    "unknown-token": conf("NCCL_ALGO=RING,NVLSTree"),
    "token-too-new": conf("NCCL_ALGO=ring,pat", nccl=(2, 23, 4)),
    "scope-too-new": conf("NCCL_ALGO=allreduce:ring", nccl=(2, 24, 3)),
    "scope-missing": conf("NCCL_ALGO=ring;allreduce:tree"),
    "scope-unknown": conf("NCCL_ALGO=AllReduce:tree"),
    "misplaced-mark": conf("NCCL_IB_HCA==mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME=^=docker0,lo"),
    "nothing-left": conf("NCCL_ALGO=Ring,Tree", "NCCL_PROTO=LL,Simple"),
    "ll128-forced": conf("NCCL_PROTO=^LL128"),
    "list-item": conf("NCCL_SOCKET_IFNAME==eth0,eth1", "NCCL_IB_HCA=mlx5_0:1,mlx5_2:1:0:1"),
    "prefix-match": conf("NCCL_IB_HCA=mlx5", "NCCL_SOCKET_IFNAME=eth0"),
    "min-above-max": conf("NCCL_MIN_CTAS=16", "NCCL_MAX_CTAS=16"),
    "old-and-new-name": conf("NCCL_MIN_NCHANNELS=4", "NCCL_MAX_CTAS=8"),
    "too-many-sockets": conf("NCCL_SOCKET_NTHREADS=8", "NCCL_NSOCKS_PERTHREAD=8"),
    "sockets-without-threads": conf("NCCL_SOCKET_NTHREADS=1", "NCCL_NSOCKS_PERTHREAD=4"),
    "no-effect-here": conf("NCCL_IB_DISABLE=0", "NCCL_IB_TIMEOUT=22"),
    "contradiction": conf("NCCL_CUMEM_ENABLE=0", "NCCL_MNNVL_ENABLE=2"),
    "chunk-cut": conf("NCCL_P2P_NET_CHUNKSIZE=524288"),
    "tuner-overruled": conf("NCCL_TUNER_PLUGIN=none", "NCCL_ALGO=ring"),
    "tuner-file-alone": conf("NCCL_TUNER_PLUGIN=example", "NCCL_TUNER_CONFIG_FILE=/opt/tuner.csv"),
    "network-between-gpus": conf("NCCL_P2P_DISABLE=0", "NCCL_SHM_DISABLE=1"),
    "risky-value": conf("NCCL_GDR_FLUSH_DISABLE=0"),
    "verbose-log": conf("NCCL_DEBUG=WARN"),
    "shared-output-file": conf("NCCL_DEBUG_FILE=/tmp/nccl.%p.log"),
    "for-one-job": shell("export NCCL_COMM_ID=10.0.0.1:2345"),
    "must-match": conf("NCCL_IB_HCA==mlx5_0"),
    "debugging-only": conf("NCCL_SOCKET_IFNAME=eth0"),
}


def said(case: Case) -> tuple[Message, ...]:
    exists = None if case.there is None else case.there.__contains__
    return lint(case.text, Target(case.nccl, case.library), format=case.format, exists=exists).messages


def of(rule: str, case: Case) -> list[Message]:
    return [message for message in said(case) if message.rule == rule]


def one(rule: str, case: Case) -> Message:
    (found,) = of(rule, case)
    return found


def test_every_rule_has_a_case_on_both_sides() -> None:
    assert list(FIRES) == list(QUIET) == list(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_fires(rule: str) -> None:
    found = of(rule, FIRES[rule])

    assert len(found) == 1
    assert found[0].severity is RULES[rule].severity or rule in MILDER_OR_WORSE


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_quiet_on_the_nearest_right_text(rule: str) -> None:
    assert of(rule, QUIET[rule]) == []


@pytest.mark.parametrize("rule", RULES)
def test_messages_are_lower_case_sentences_without_a_full_stop(rule: str) -> None:
    capitals = {"NCCL", "NVIDIA", "INFO", "TRACE", "Docker", "Kubernetes"}
    texts = [message.text for message in said(FIRES[rule])]

    assert [
        text for text in texts if text[0].isupper() and text.split()[0].split("_")[0] not in capitals
    ] == []
    assert [text for text in texts if text.endswith(".")] == []


@pytest.mark.parametrize(
    ("line", "column"),
    [("NCCL_IB_TIMOUT=22", 1), ("NCCL_BUFFSIZE=4M", 15), ("export NCCL_DEBUG=WARN", 8)],
)
def test_a_message_says_where_the_name_or_the_value_begins(line: str, column: int) -> None:
    found = min(said(conf("NCCL_CROSS_NIC=0", line)), key=lambda message: message.severity.rank)

    assert (found.line, found.column) == (2, column)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("NCCL_IB_TIMOUT=22", "did you mean `NCCL_IB_TIMEOUT`?"),
        ("NCCL_DEBUG_SUBSYSTEM=NET", "did you mean `NCCL_DEBUG_SUBSYS`?"),
        ("NCLL_DEBUG=WARN", "did you mean `NCCL_DEBUG`?"),
        ("NCCLDEBUG=WARN", "did you mean `NCCL_DEBUG`?"),
        ("NCCL_BUFF_SIZE=4194304", "use `NCCL_BUFFSIZE`"),
        ("NCCL_BUFFSIZE=4M", "write `NCCL_BUFFSIZE=4194304`"),
        ("NCCL_BUFFSIZE=4 MiB", "write `NCCL_BUFFSIZE=4194304`"),
        ("NCCL_IB_DISABLE=true", "write `NCCL_IB_DISABLE=1`"),
        ("NCCL_NVLS_ENABLE=off", "write `NCCL_NVLS_ENABLE=0`"),
        ("NCCL_NET_GDR_LEVEL=phb", "did you mean `PHB`?"),
        ("NCCL_DEBUG=WARNING", "did you mean `WARN`?"),
        ("NCCL_ALGO=NVLS_TREE,ring", "did you mean `nvlstree`?"),
        ("NCCL_ALGO=Tree", "`NCCL_ALGO=allreduce:Tree`"),
        ("NCCL_NET=tcp", "did you mean `Socket`?"),
        ("NCCL_IB_GDR_LEVEL=PHB", "use `NCCL_NET_GDR_LEVEL`"),
        ("NCCL_BLOCKING_WAIT=1", "export `TORCH_NCCL_BLOCKING_WAIT` where the job starts"),
        ("NCCL_IB_TIMEOUT=022", "write `22`"),
        ("NCCL_SOCKET_IFNAME==^docker0", "write `^=docker0`"),
    ],
)
def test_a_hint_says_what_to_write(line: str, hint: str) -> None:
    hints = [message.hint for message in said(conf(line)) if message.severity is not Severity.NOTICE]

    assert hint in hints


def test_a_number_with_text_behind_it_is_told_with_what_nccl_reads() -> None:
    assert one("number-suffix", conf("NCCL_BUFFSIZE=4M")).text == "NCCL drops `M`: `4M` is 4"
    assert one("octal-number", conf("NCCL_IB_TIMEOUT=022")).text.endswith("NCCL reads `022` as 18")


def test_only_the_functions_that_lose_their_algorithm_are_named() -> None:
    assert (
        "broadcast, reduce, allgather and reducescatter" in one("nothing-left", conf("NCCL_ALGO=Tree")).text
    )
    assert "broadcast and reduce:" in one("nothing-left", conf("NCCL_ALGO=NVLS")).text
    assert "for allreduce:" in one("nothing-left", conf("NCCL_ALGO=allreduce:pat")).text
    assert of("nothing-left", conf("NCCL_ALGO=ring;allreduce:tree")) == []
    assert of("nothing-left", conf("NCCL_ALGO=Tree", nccl=(2, 23, 4))) == []


def test_an_algorithm_that_knows_only_simple_needs_it() -> None:
    assert of("nothing-left", conf("NCCL_ALGO=allreduce:nvls", "NCCL_PROTO=LL"))
    assert of("nothing-left", conf("NCCL_ALGO=allreduce:nvls,ring", "NCCL_PROTO=LL")) == []
    assert of("nothing-left", conf("NCCL_ALGO=allreduce:nvls", "NCCL_PROTO=allgather:LL")) == []


def test_a_provider_that_asks_for_ll128_is_no_cause_for_alarm() -> None:
    found = one("ll128-forced", conf("NCCL_FASTRAK_NUM_FLOWS=2", "NCCL_PROTO=Simple,LL128"))

    assert found.severity is Severity.NOTICE


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("NCCL_IB_TIMEOUT=22 ", Severity.NOTICE),
        ("NCCL_NET=IB ", Severity.ERROR),
    ],
)
def test_a_space_behind_a_number_does_no_harm(line: str, severity: Severity) -> None:
    assert one("space-around-value", conf(line)).severity is severity


def test_a_file_with_many_crs_is_told_once() -> None:
    found = one("carriage-return", Case("NCCL_DEBUG=WARN\r\nNCCL_NET=IB\r\n"))

    assert found.severity is Severity.NOTICE
    assert found.text.startswith("2 lines end in CR LF")


def test_the_meant_name_is_checked_behind_a_wrong_word() -> None:
    rules = {message.rule for message in said(conf("export NCCL_BUFFSIZE=4M"))}

    assert {"export-in-conf", "number-suffix"} <= rules


def test_the_first_setting_counts_in_nccl_conf_and_the_last_elsewhere() -> None:
    lines = ("NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE=0", "NCCL_IB_TIMEOUT=22")

    assert of("no-effect-here", conf(*lines))
    assert of("no-effect-here", conf(*lines, format=Format.ENV_FILE)) == []
    assert "the first wins" in one("duplicate-name", conf(*lines)).text
    assert "the last wins" in one("duplicate-name", conf(*lines, format=Format.ENV_FILE)).text


@pytest.mark.parametrize("wrong", ["export NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE =1", '"NCCL_IB_DISABLE=1"'])
def test_a_line_whose_name_nccl_gets_wrong_wins_over_no_other(wrong: str) -> None:
    document = conf(wrong, "NCCL_IB_DISABLE=0", "NCCL_IB_TIMEOUT=22")

    assert of("duplicate-name", document) == of("no-effect-here", document) == []


@pytest.mark.parametrize(
    ("lines", "rule", "part"),
    [
        (("NCCL_NET=Socket", "NCCL_IB_HCA=mlx5"), "no-effect-here", "`NCCL_NET=Socket`"),
        (("NCCL_NET=IB", "NCCL_IB_DISABLE=1"), "contradiction", "fail to start"),
        (("NCCL_NET=IB", "NCCL_SOCKET_NTHREADS=4"), "no-effect-here", "`NCCL_NET=IB`"),
        (("NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=NVL"), "no-effect-here", "beats it"),
        (("NCCL_NVLS_ENABLE=0", "NCCL_ALGO=allreduce:nvls,ring"), "contradiction", "nvls"),
        (("NCCL_NVLS_ENABLE=0", "NCCL_NVLS_NCHANNELS=8"), "no-effect-here", "NVLS_NCHANNELS"),
        (("NCCL_ALGO=allreduce:collnetdirect,ring",), "no-effect-here", "`NCCL_COLLNET_ENABLE=1`"),
        (("NCCL_TUNER_PLUGIN=none", "NCCL_TUNER_CONFIG_FILE=/a"), "no-effect-here", "none"),
        (("NCCL_IB_GID_INDEX=3", "NCCL_IB_ROCE_VERSION_NUM=2"), "no-effect-here", "INDEX=3"),
        (("NCCL_IB_QPS_PER_CONNECTION=1", "NCCL_IB_SPLIT_DATA_ON_QPS=1"), "no-effect-here", "one queue"),
        (("NCCL_IB_OOO_RQ=1", "NCCL_IB_AR_THRESHOLD=0"), "no-effect-here", "OOO_RQ"),
        (
            ("NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=8388608"),
            "contradiction",
            "switches adaptive",
        ),
        (("NCCL_PXN_DISABLE=1", "NCCL_P2P_PXN_LEVEL=2"), "no-effect-here", "PXN_DISABLE"),
        (("NCCL_CTA_POLICY=EFFICIENCY", "NCCL_ALGO=ring"), "no-effect-here", "`NCCL_ALGO`"),
        (("NCCL_DEBUG=WARN", "NCCL_DEBUG_SUBSYS=NET"), "no-effect-here", "WARN"),
        (("NCCL_CUMEM_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=1"), "no-effect-here", "host memory"),
        (("NCCL_GRAPH_STREAM_ORDERING=0", "NCCL_GRAPH_MIXING_SUPPORT=1"), "contradiction", "MIXING"),
        (("NCCL_TOPO_FILE=/a.xml", "NCCL_TOPO_DUMP_FILE=/a.xml"), "shared-output-file", "TOPO_FILE"),
        (("NCCL_CHUNK_SIZE=1048576",), "risky-value", "does not check"),
        (("NCCL_MIN_CTAS=32", "NCCL_MAX_NCHANNELS=8"), "min-above-max", "MAX_NCHANNELS=8"),
        (("NCCL_IB_RETURN_ASYNC_EVENTS=0",), "risky-value", "hang"),
        (("NCCL_HOSTID=node1",), "for-one-job", "count as one"),
    ],
)
def test_settings_that_meet(lines: tuple[str, ...], rule: str, part: str) -> None:
    assert part in one(rule, conf(*lines)).text


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_DEBUG_SUBSYS=^NET,INIT",
        "NCCL_DEBUG_TIMESTAMP_LEVELS=^TRACE",
        "NCCL_CTA_POLICY=EFFICIENCY|ZERO",
        "NCCL_CTA_POLICY=1",
        "NCCL_NETDEVS_POLICY=MAX:2",
        "NCCL_NET=AWS Libfabric",
        "NCCL_IB_ADDR_RANGE=10.0.0.0/16",
        "NCCL_IB_ADDR_RANGE=fd00::/64",
        "NCCL_RAS_ADDR=[::1]:28028",
        "NCCL_THREAD_THRESHOLDS=-2 -2 64 -2 8 64",
        "NCCL_DEBUG_TIMESTAMP_FORMAT=[%F %T] ",
        "NCCL_CUMEM_ENABLE=-2",
        "NCCL_SOCKET_IFNAME=^=docker0,lo",
        "NCCL_MNNVL_CLIQUE_ID=-2",
    ],
)
def test_odd_but_right_values_are_let_through(line: str) -> None:
    assert [message for message in said(conf(line)) if message.severity is not Severity.NOTICE] == []


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_DEBUG_SUBSYS=NETWORK",
        "NCCL_DEBUG_TIMESTAMP_LEVELS=WARNING",
        "NCCL_CTA_POLICY=FAST",
        "NCCL_NETDEVS_POLICY=MAX",
        "NCCL_IB_ADDR_RANGE=10.0.0.0/40",
        "NCCL_RAS_ADDR=localhost",
        "NCCL_RAS_ADDR=localhost:99999",
        "NCCL_SOCKET_FAMILY=ipv4",
        "NCCL_CROSS_NIC=3",
        "NCCL_NET_MERGE_LEVEL=pix",
    ],
)
def test_wrong_values_are_told(line: str) -> None:
    assert of("value-not-allowed", conf(line))


def test_policy_words_are_too_new_for_an_old_nccl() -> None:
    assert of("value-not-allowed", conf("NCCL_CTA_POLICY=ZERO", nccl=(2, 28, 9)))


def test_a_timeout_without_end_is_an_error() -> None:
    assert one("out-of-range", conf("NCCL_IB_TIMEOUT=32")).severity is Severity.ERROR


def test_channels_are_bounded_by_the_version() -> None:
    assert of("out-of-range", conf("NCCL_MAX_CTAS=48")) == []
    assert of("out-of-range", conf("NCCL_MAX_CTAS=48", nccl=(2, 24, 3)))


def test_names_of_one_plugin_are_one_message() -> None:
    found = one("plugin-name", conf("NCCL_FASTRAK_NUM_FLOWS=2", "NCCL_FASTRAK_USE_SNAP=1"))

    assert found.text == (
        "`NCCL_FASTRAK_NUM_FLOWS` and `NCCL_FASTRAK_USE_SNAP` are read by Google's GPUDirect-TCPXO plugin, "
        "not by NCCL itself"
    )


@pytest.mark.parametrize(
    "line", ["export NCCL_HOME=/usr", "NCCL_OPTIONS='-x A=1'", "ENV NCCL_VERSION=2.27.3"]
)
def test_names_that_a_script_uses_for_itself_are_its_own(line: str) -> None:
    assert said(shell("export NCCL_DEBUG=WARN", line)) == ()


def test_a_missing_graph_file_is_worse_than_a_missing_topology() -> None:
    lines = ("NCCL_GRAPH_FILE=/opt/g.xml", "NCCL_TOPO_FILE=/opt/t.xml")

    graph, topology = of("missing-path", conf(*lines, there=frozenset()))

    assert (graph.severity, topology.severity) == (Severity.ERROR, Severity.WARNING)


def test_without_a_look_no_path_is_missing() -> None:
    assert of("missing-path", conf("NCCL_GRAPH_FILE=/opt/g.xml")) == []
