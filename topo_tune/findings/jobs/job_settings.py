"""Rules about what a job was told: variables that NCCL refused or that differ between ranks, plugins not loaded."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.jobs.job_logs import logs
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed
from topo_tune.records.catalogue import catalogue
from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan

_VARIABLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def _refused(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if log.refused_settings:
            yield Sighting(
                "NCCL did not take the value of a variable as it was given",
                document.node,
                tuple(f"{document.file}: {text}" for text in log.refused_settings[:8]),
            )


def _differs(scan: Scan) -> Iterator[Sighting]:
    known = catalogue()
    for document, log in logs(scan):
        values: dict[str, list[str]] = {}
        for setting in log.settings:
            variable = known.get(setting.name)
            if variable is not None and variable.must_match_across_ranks:
                values.setdefault(setting.name, []).append(f"{setting.value} ({setting.processes} processes)")
        for name, found in values.items():
            if len(found) > 1:
                yield Sighting(
                    f"ranks of one job have different values of `{name}`, which must be the same on all",
                    document.node,
                    (f"{document.file}: {name} = {listed(found)}",),
                )


def _plugins(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if log.failed_plugins:
            yield Sighting(
                "a plugin was not loaded, so NCCL went on without it",
                document.node,
                tuple(f"{document.file}: {text}" for text in log.failed_plugins[:8]),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        id="job-setting-refused",
        title="NCCL refused a variable's value",
        severity=Severity.WARNING,
        why="NCCL then uses its own default or limit and says so only in an INFO line: the job runs with "
        "other settings than intended",
        fix=("give a value within the limits that the message names, or unset the variable",),
        source="NVIDIA/nccl: src/misc/param.cc, src/graph/tuning.cc (getNthreads), src/init.cc",
        look=_refused,
    ),
    Rule(
        id="job-settings-differ",
        title="ranks of one job run with different values",
        severity=Severity.WARNING,
        why="NCCL does not exchange these values: ranks that disagree hang, abort with `message truncated`, "
        "or compute wrong results",
        fix=(
            "set the variable in one place for all ranks: the launcher's environment or `/etc/nccl.conf` of "
            "every node",
            "`topo-tune scan` shows where each node gets its value from; save the logs of several jobs on "
            "their own",
        ),
        source=_VARIABLES,
        look=_differs,
    ),
    Rule(
        id="job-plugin-missing",
        title="a plugin that was asked for is not loaded",
        severity=Severity.WARNING,
        why="without its network plugin a job falls back to NCCL's own transports, which for EFA, Slingshot "
        "or TCPX means TCP; without its tuner the intended choices are not made",
        fix=(
            "`ldd PLUGIN.so` inside the job's container shows which library is missing, or `undefined symbol`",
            "add the plugin's folder to `LD_LIBRARY_PATH`, or give its whole path in `NCCL_NET_PLUGIN` or "
            "`NCCL_TUNER_PLUGIN`",
        ),
        source="NVIDIA/nccl: src/plugin/plugin_open.cc",
        look=_plugins,
    ),
)
