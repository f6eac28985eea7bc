"""Variables set in profiles, units, prologs and images: each way of writing them, and what stays on the node."""

from __future__ import annotations

import re
import time

import pytest
from golden_facts import beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.provenance import Layer, Reach
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Gathered, RawText
from topo_tune.scan.facts.nccl import nccl_files, nccl_settings, setting_lines

ENV = """SHELL=/bin/bash
NCCL_DEBUG=INFO
SLURM_JOB_ID=12
AWS_SECRET_ACCESS_KEY=hunter2
PATH=/usr/local/cuda/bin:/usr/bin
HOME=/home/ada
NCCL_IB_HCA==mlx5_0,mlx5_1
_=/usr/bin/env
"""


def test_every_way_of_writing_a_shell_assignment_is_read() -> None:
    text = (
        "3:export NCCL_DEBUG=INFO\n"
        "5:export NCCL_IB_HCA=\"mlx5_0,mlx5_1\" NCCL_ALGO='Ring'; NCCL_PROTO=LL\n"
        "7:# export NCCL_NET=Socket\n"
        "9:setenv NCCL_SOCKET_IFNAME eth0\n"
        '11:echo "export NCCL_CROSS_NIC=1"\n'
        "12:[ -z $NCCL_NET ] && export NCCL_TOPO_FILE=$TOPO # see NCCL_X\n"
        "13:export TORCH_NCCL_TRACE=1\n"
    )

    assert setting_lines.in_shell(text) == [
        (3, "NCCL_DEBUG", "INFO"),
        (5, "NCCL_IB_HCA", "mlx5_0,mlx5_1"),
        (5, "NCCL_ALGO", "Ring"),
        (5, "NCCL_PROTO", "LL"),
        (9, "NCCL_SOCKET_IFNAME", "eth0"),
        (11, "NCCL_CROSS_NIC", "1"),
        (12, "NCCL_TOPO_FILE", "$TOPO"),
    ]


def test_a_value_in_an_environment_file_is_the_rest_of_the_line() -> None:
    text = '1:NCCL_IB_HCA==mlx5_0\n2:NCCL_ALGO="Ring, Tree"\n4:export NCCL_NET=IB\n5: PATH=NCCL_X\n'

    assert setting_lines.in_environment_file(text) == [
        (1, "NCCL_IB_HCA", "=mlx5_0"),
        (2, "NCCL_ALGO", "Ring, Tree"),
        (4, "NCCL_NET", "IB"),
    ]


def test_a_units_environment_is_read_with_and_without_quotes() -> None:
    text = "8:Environment=\"NCCL_IB_TC=106\" NCCL_DEBUG=WARN 'NCCL_ALGO=Ring Tree'\n9:EnvironmentFile=-/etc/NCCL_a\n"

    assert setting_lines.in_unit(text) == [
        (8, "NCCL_IB_TC", "106"),
        (8, "NCCL_DEBUG", "WARN"),
        (8, "NCCL_ALGO", "Ring Tree"),
    ]


def test_what_pam_overrides_goes_before_its_default() -> None:
    text = '2:NCCL_DEBUG DEFAULT=WARN\n3:NCCL_NET DEFAULT="IB" OVERRIDE=Socket\n4:#NCCL_ALGO DEFAULT=Ring\n'

    assert setting_lines.in_pam_conf(text) == [(2, "NCCL_DEBUG", "WARN"), (3, "NCCL_NET", "Socket")]


def test_each_place_is_told_with_its_layer_path_and_line() -> None:
    gathered = Gathered(
        files=(
            RawText("/etc/profile.d/*.sh", "/etc/profile.d/nccl.sh", "4:export NCCL_ALGO=Ring\n"),
            RawText("/etc/environment", "/etc/environment", "1:NCCL_DEBUG=WARN\n"),
            RawText(
                "/etc/systemd/system/slurmd.service.d/*.conf",
                "/etc/systemd/system/slurmd.service.d/a.conf",
                "2:Environment=NCCL_NET=IB\n",
            ),
            RawText("/proc/1/environ", "/proc/1/environ", "NCCL_IB_TC=3\n"),
            RawText("/etc/slurm/*[pP]rolog*", "/etc/slurm/task_prolog.sh", "9:echo export NCCL_PROTO=LL\n"),
        )
    )

    found = nccl_settings.tell(node_scan(), gathered).settings

    assert [(o.name, o.value, o.layer, o.path, o.line) for o in found] == [
        ("NCCL_ALGO", "Ring", Layer.PROFILE, "/etc/profile.d/nccl.sh", 4),
        ("NCCL_DEBUG", "WARN", Layer.PAM, "/etc/environment", 1),
        ("NCCL_IB_TC", "3", Layer.CONTAINER_IMAGE, "/proc/1/environ", None),
        ("NCCL_NET", "IB", Layer.SLURMD, "/etc/systemd/system/slurmd.service.d/a.conf", 2),
        ("NCCL_PROTO", "LL", Layer.TASK_PROLOG, "/etc/slurm/task_prolog.sh", 9),
    ]
    assert {o.reach for o in found} == {Reach.DEPENDS}


def test_a_winning_value_that_names_a_file_says_whether_it_is_there() -> None:
    conf = nccl_files.parse(
        "NCCL_TOPO_FILE=/opt/a.xml\nNCCL_GRAPH_FILE=/opt/b.xml\nNCCL_TUNER_CONFIG_FILE=c.csv\n",
        path="/etc/nccl.conf",
    )
    gathered = Gathered(
        files=(
            RawText("$NCCL_TOPO_FILE", "/opt/a.xml", ""),
            RawText("$NCCL_GRAPH_FILE", "/opt/b.xml", None, "No such file or directory"),
        )
    )

    found = nccl_settings.tell(node_scan(nccl_files=(conf,)), gathered).settings

    assert {o.name: o.file_exists for o in found} == {
        "NCCL_GRAPH_FILE": False,
        "NCCL_TOPO_FILE": True,
        "NCCL_TUNER_CONFIG_FILE": None,
    }


def test_a_profile_that_cannot_be_read_is_said() -> None:
    gathered = Gathered(files=(RawText("~/.bashrc", "/root/.bashrc", None, "Permission denied"),))

    (absent,) = nccl_settings.tell(node_scan(), gathered).absent

    assert absent.reason == "/root/.bashrc: Permission denied"


def test_only_lines_with_nccl_in_them_are_asked_for() -> None:
    (fact,) = nccl_settings.FACTS

    texts = [files for files in fact.files if files.mode in {"text", "numbered"}]
    assert all(files.keep in {"NCCL_", "^NCCL_"} for files in texts)
    assert fact.commands == ()


def test_of_a_saved_environment_only_nccl_variables_are_kept() -> None:
    node = nccl_settings.tell_environment(node_scan(), ENV, "env.txt")

    assert node.nccl_environment == (("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"))
    assert [(o.name, o.layer, o.reach) for o in node.settings] == [
        ("NCCL_DEBUG", Layer.ENVIRONMENT, Reach.WINS),
        ("NCCL_IB_HCA", Layer.ENVIRONMENT, Reach.WINS),
    ]
    assert "hunter2" not in str(node)


@pytest.mark.parametrize(
    "changed",
    [
        ENV.replace("\n", "\r\n"),
        "".join(f"0: {line}\n" for line in ENV.splitlines()),
        "".join(f"[1,0]<stdout>: {line}\n" for line in ENV.splitlines()),
        "".join(f'declare -x {n}="{v}"\n' for n, _, v in (line.partition("=") for line in ENV.splitlines())),
    ],
    ids=["carriage returns", "srun", "mpirun", "export -p"],
)
def test_an_environment_is_read_in_whatever_way_it_was_printed(changed: str) -> None:
    assert nccl_settings.is_environment(changed.replace("\r", ""))

    node = nccl_settings.tell_environment(node_scan(), changed, "env.txt")

    assert node.nccl_environment == (("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"))


def test_a_file_of_nccls_settings_is_no_environment() -> None:
    assert not nccl_settings.is_environment("NCCL_ALGO=Ring\n" * 20)
    assert not nccl_settings.is_environment(
        "export PATH=/a:$PATH\nexport NCCL_ALGO=Ring\nif true; then\nfi\n"
    )


def test_a_slurmd_unit_tells_what_jobs_inherit() -> None:
    text = "[Unit]\nDescription=x\n[Service]\nExecStart=/usr/sbin/slurmd\nEnvironment=NCCL_NET=IB\n"

    assert nccl_settings.is_unit(text)
    (origin,) = nccl_settings.tell_unit(node_scan(), text, "override.conf").settings

    assert (origin.name, origin.layer, origin.line) == ("NCCL_NET", Layer.SLURMD, 5)


def test_another_unit_tells_what_its_own_processes_have() -> None:
    text = "[Service]\nEnvironment=NCCL_NET=IB\n"

    (origin,) = nccl_settings.tell_unit(node_scan(), text, "jupyter.service").settings

    assert origin.layer is Layer.SYSTEMD


def test_no_saved_file_of_another_kind_is_taken() -> None:
    taken = [
        path.name
        for path in beside_the_repository(".")
        for kind in nccl_settings.KINDS
        if kind.recognise(text_of(path)[: 256 << 10])
    ]

    assert taken == []


TEXTS = st.one_of(
    st.text(max_size=400),
    st.tuples(st.integers(0, len(ENV)), st.text(max_size=20)).map(lambda t: ENV[: t[0]] + t[1] + ENV[t[0] :]),
)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_any_text_gives_settings_or_a_refusal(text: str) -> None:
    for read in (
        setting_lines.in_shell,
        setting_lines.in_environment_file,
        setting_lines.in_pam_conf,
        setting_lines.in_unit,
    ):
        assert all(re.fullmatch(r"NCCL_[A-Z0-9_]+", name) for _, name, _ in read(text))
    try:
        node = nccl_settings.tell_environment(node_scan(), text, "x")
    except InputError:
        return
    assert isinstance(node, NodeScan)


@pytest.mark.parametrize("text", ['NCCL_A="' * 600_000, "x" * 5_000_000, "NCCL_A=1\n" * 500_000], ids=len)
def test_large_texts_are_read_in_no_time(text: str) -> None:
    began = time.monotonic()

    setting_lines.in_shell(text)
    setting_lines.in_unit(text)
    nccl_settings.is_environment(text[: 256 << 10])

    assert time.monotonic() - began < 2.0
