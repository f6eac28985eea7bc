"""One rank of a trial: it meets the others, and for each variant checks sums, times every size and says what it saw.

A variant is a set of NCCL variables and communicator settings that needs no new processes. Whatever a back end does
its own way is in `nccl_rank` and `gloo_rank`. Runs on the node, Python 3.8 and newer.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

from topo_tune.on_node import known_bytes
from topo_tune.on_node.collectives import (
    Counts,
    collective_of,
    counts_of,
    groups_of,
    in_place_starts,
    least_bytes,
    measured_bytes,
)
from topo_tune.on_node.data_types import data_type
from topo_tune.on_node.environment import VariantEnvironment, settings_in_force
from topo_tune.on_node.gloo_rank import GlooRank
from topo_tune.on_node.known_data import KnownData, known_data, repeated_in_place
from topo_tune.on_node.marks import mark
from topo_tune.on_node.meeting import Meeting
from topo_tune.on_node.nccl_rank import Call, NcclRank
from topo_tune.on_node.overlap import Overlap

Json = Dict[str, Any]

GRAPH_CALLS = 20
"""calls captured in one CUDA graph, as nccl-tests' `-G 20`"""
GRAPH_BELOW_SECONDS = 2e-3
"""calls slower than this gain nothing from a graph: the host's launch cost is below 1 % of them"""
EAGER_SAMPLE_SECONDS = 20e-3
GRAPH_SAMPLE_SECONDS = 6e-3
"""how long one sample should last, so that the jitter of clocks and launches is small beside it"""
WARM_UP_CALLS = 2
MOST_WARM_UP_CALLS = 10
"""before a setting is cut off, where a call is shorter than `PATIENCE_SECONDS`"""
PATIENCE_SECONDS = 0.1
FIRST_CALL_BYTES = 1024
PROBE_LOG_LINES = 400

# Lines of NCCL's own log that tell which settings and choices were in force.
_LOG_LINES = re.compile(
    r"set by environment to|NCCL_IB_HCA set to|Algo \w+ proto|NCCL version|threads and \d+ sockets|coll channels"
    r"|Using network|Comm config|Initialized NET plugin|NCCL WARN|MNNVL"
)


def run_rank(
    request: Json, backend: str, local_rank: int, folder: Optional[str], say: Callable[[Json], None]
) -> None:
    """Everything one rank does in one trial. `say` takes what it saw, once a variant.

    Errors become text, so that the agent can name the rank; with one, the trial is over for this rank.
    `folder`: where a probe's NCCL log goes; the agent removes it, whatever becomes of the rank.
    """
    rank = int(request["first_rank"]) + local_rank
    os.environ.update(request["env"])
    parts = int(request.get("as_nodes", 1))
    if parts > 1:
        # NCCL takes ranks with different host ids for different nodes and uses the network between them.
        part = local_rank * parts // int(request["local_ranks"])
        os.environ["NCCL_HOSTID"] = "%s-part%d" % (request["node"], part)
    log = None
    if folder is not None:
        log = NcclLog(os.path.join(folder, "rank%d.log" % local_rank))
    answers = Answers(rank, log, say)
    try:
        Measurement(request, backend, rank, local_rank, answers).run()
    except Exception as exc:  # noqa: BLE001 - any failure of a setting is a result of the trial
        answers.fail("rank %d: %s" % (rank, in_words(exc)))


def in_words(error: Exception) -> str:
    """What went wrong, in a line; running out of GPU memory is told apart, whoever ran out of it."""
    told = "%s: %s" % (type(error).__name__, first_line(str(error)))
    if re.search("out of memory|OutOfMemory", told, re.IGNORECASE):
        return "out of GPU memory: " + told
    return told


def first_line(text: str) -> str:
    """The first non-empty lines of a long message, short enough for a report."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:3])[:600]


class NcclLog:
    """The log that NCCL writes during a probe, read piece by piece."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        os.environ.update(
            {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,TUNING,GRAPH",
                "NCCL_DEBUG_FILE": path,
            }
        )

    def news(self) -> List[str]:
        """The lines since the last look that prove settings and choices, without their prefix."""
        if not os.path.exists(self._path):
            return []
        with open(self._path, "rb") as file:
            file.seek(self._read)
            data = file.read()
        # NCCL's threads go on writing: a line that is cut off is read whole the next time.
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        text = data.decode("utf-8", "replace")
        found = [line.split("NCCL INFO ", 1)[-1] for line in text.splitlines() if _LOG_LINES.search(line)]
        return found[:PROBE_LOG_LINES]


class Answers:
    """What this rank says: one answer a variant, filled in while it is measured."""

    def __init__(self, rank: int, log: Optional[NcclLog], say: Callable[[Json], None]) -> None:
        self._rank, self._log, self._say = rank, log, say
        self.current: Json = {}
        self.begin(0)

    def begin(self, index: int) -> Json:
        """The answer of a variant, nothing in it yet."""
        self.current = {
            "variant": index,
            "rank": self._rank,
            "results": [],
            "setup": {},
            "in_force": {},
            "log": [],
            "error": None,
        }
        return self.current

    def send(self) -> None:
        """Say what is known of the variant."""
        if self._log is not None:
            self.current["log"] = self._log.news()
        self._say(self.current)

    def fail(self, error: str) -> None:
        """Say it with an error."""
        self.current["error"] = error
        self.send()


class Operation(NamedTuple):
    """One collective of one size, with its buffers as bytes."""

    size_bytes: int
    counts: Counts
    send: Any
    receive: Any
    call: Call


class Measurement:
    """One rank's part of a trial."""

    def __init__(self, request: Json, backend: str, rank: int, local_rank: int, answers: Answers) -> None:
        self.request, self.backend, self.rank, self.answers = request, backend, rank, answers
        self.plan = plan = request["plan"]
        self.local_rank, self.world = local_rank, int(request["world_size"])
        self.variants: List[Json] = list(request.get("variants") or [{}])
        self.collective = collective_of(plan.get("collective", "all_reduce"))
        self.kind = data_type(plan["dtype"])
        self.in_place = bool(plan.get("in_place", True))
        if self.in_place and not self.collective.has_in_place:
            raise ValueError("%s cannot be done in place" % self.collective.name)
        if plan.get("overlap") and backend != "nccl":
            raise ValueError("overlap is measured with NCCL only")
        nodes = int(request.get("as_nodes", 1))
        per_node = int(request.get("ranks_per_node") or int(request["local_ranks"]) // nodes)
        layout = plan.get("layout", "world")
        self.groups = groups_of(layout, self.world, per_node)
        self.group = next(group for group in self.groups if rank in group.ranks)
        self.group_rank = self.group.ranks.index(rank)
        # Groups that do not meet in any call, and ranks that do not wait for each other in one, drift apart.
        self.drifts = layout != "world" or not self.collective.brings_together
        self.limits: Dict[int, float] = {}
        self.overlap: Optional[Overlap] = None
        self.variant = 0

    # -- the trial

    def run(self) -> None:
        """Set up, measure each variant, and leave together."""
        context_seconds = self._open()
        environment = VariantEnvironment()
        for index, variant in enumerate(self.variants):
            self.variant = index
            answer = self.answers.begin(self.variant)
            limits = variant.get("slowest_seconds", self.plan.get("slowest_seconds"))
            self.limits = {int(size): float(seconds) for size, seconds in limits or ()}
            environment.apply(variant.get("env") or {})
            answer["back"] = dict(environment.back)
            self._connect(variant, answer)
            if self.variant == 0:
                answer["setup"]["context"] = context_seconds
            self._measure_sizes(answer["results"])
            self._mark("letting the communicator go")
            over = time.monotonic()
            self.ranks.disconnect()
            answer["setup"]["release"] = time.monotonic() - over
            self.answers.send()
            if self.variant + 1 < len(self.variants) and self._is_wrong_on_any_rank(answer):
                # Nothing behind a wrong result is worth having.
                break
        self._mark("leaving")
        self.meeting.leave_together()

    def _open(self) -> float:
        """Memory and the back end; seconds of the first."""
        import torch
        import torch.distributed

        self.torch = torch
        self._mark("set-up")
        started = time.monotonic()
        device = torch.device("cpu")
        if self.backend == "nccl":
            device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(device)
        room = max([self._first_bytes(), *self.plan["sizes_bytes"]])
        self.receive_memory = torch.zeros(room, dtype=torch.uint8, device=device)
        self.send_memory = self.receive_memory
        if not self.in_place:
            self.send_memory = torch.zeros(room, dtype=torch.uint8, device=device)
        if self.backend == "nccl":
            torch.cuda.synchronize()
        self.memory_ready = time.monotonic()
        host, port = str(self.request["master"][0]), int(self.request["master"][1])
        seconds = float(self.plan["deadline_seconds"])
        if self.backend == "gloo":
            GlooRank.choose_interface(host, port)
        self._mark("meeting the other ranks")
        self.meeting = Meeting.join(torch.distributed, host, port, self.rank, self.world, seconds)
        self.ranks: Union[NcclRank, GlooRank]
        if self.backend == "nccl":
            release = self.plan.get("release", "keep")
            self.ranks = NcclRank(torch, self.meeting, self.local_rank, self.kind, release)
        else:
            timeout = datetime.timedelta(seconds=seconds)
            self.ranks = GlooRank(torch, self.meeting, self.kind, self.groups, timeout)
        return self.memory_ready - started

    def _connect(self, variant: Json, answer: Json) -> None:
        """Make the communicator of a variant and use it once."""
        started = self.memory_ready if self.variant == 0 else time.monotonic()
        self._mark("making the communicator")
        needs_bytes = int(self.plan.get("needs_bytes") or 0)
        self.ranks.connect(self.variant, self.group, variant.get("config") or {}, needs_bytes)
        answer["in_force"] = settings_in_force()
        ready = time.monotonic()
        self._mark("first call")
        self.lead = self._operation(self._first_bytes()).call
        self.lead()
        self.ranks.wait()
        answer["setup"].update(communicator=ready - started, first_call=time.monotonic() - ready)

    def _measure_sizes(self, results: List[Json]) -> None:
        longest: Optional[int] = None
        for size_bytes in self.plan["sizes_bytes"]:
            if self.request.get("probe"):
                self._mark("checking %d bytes" % size_bytes)
                self._check(self._operation(size_bytes))
            elif longest is None or size_bytes < longest:
                results.append(self._measure(size_bytes))
                if "slower_than_seconds" in results[-1]:
                    longest = size_bytes

    def _is_wrong_on_any_rank(self, answer: Json) -> bool:
        is_wrong = any(not result["is_correct"] for result in answer["results"])
        return self.meeting.largest(float(is_wrong)) > 0

    # -- one size

    def _measure(self, asked_bytes: int) -> Json:
        operation = self._operation(asked_bytes)
        size = "%d bytes" % operation.size_bytes
        self._mark("checking " + size)
        is_correct = self._check(operation)
        self._mark("timing " + size)
        self._clear(operation)
        warmup = [self._seconds(operation.call, self.lead) for _ in range(WARM_UP_CALLS)]
        one_call = self.meeting.largest(min(warmup))
        limit = self.limits.get(asked_bytes)
        # A host that was busy for a moment is no slow setting. All ranks know the same number, and go on alike.
        while limit is not None and limit < one_call < PATIENCE_SECONDS and len(warmup) < MOST_WARM_UP_CALLS:
            warmup.append(self._seconds(operation.call, self.lead))
            one_call = self.meeting.largest(min(warmup))
        use_graph = self.ranks.has_graphs and one_call < GRAPH_BELOW_SECONDS
        result: Json = {
            "size_bytes": operation.size_bytes,
            "samples_seconds": [],
            "calls_per_sample": 0,
            "mode": "graph" if use_graph else "eager",
            "is_correct": is_correct,
            "warmup_seconds": warmup,
        }
        if limit is not None and one_call > limit:
            result["slower_than_seconds"] = limit
        elif use_graph:
            self._measure_in_graph(operation, result)
        else:
            self._measure_eager(operation, one_call, result)
        if asked_bytes == max(self.plan["sizes_bytes"]) and result["samples_seconds"]:
            self._mark("checking %s again" % size)
            result["is_correct"] = self._check(operation) and result["is_correct"]
        return result

    def _measure_eager(self, operation: Operation, one_call: float, result: Json) -> None:
        def ask(calls: int) -> int:
            for _ in range(calls):
                operation.call()
            return calls

        calls = max(1, min(200, round(EAGER_SAMPLE_SECONDS / one_call)))
        self._take_samples(operation, ask, calls, self.lead, one_call, result)

    def _measure_in_graph(self, operation: Operation, result: Json) -> None:
        assert isinstance(self.ranks, NcclRank)
        self._mark("capturing a graph of %d bytes" % operation.size_bytes)
        graph = self.ranks.capture(operation.call, GRAPH_CALLS)

        def ask(calls: int) -> int:
            replays = -(-calls // GRAPH_CALLS)
            for _ in range(replays):
                graph.replay()
            return replays * GRAPH_CALLS

        self._mark("replaying a graph of %d bytes" % operation.size_bytes)
        result["is_correct"] = self._check_graph(operation, graph.replay) and result["is_correct"]
        self._clear(operation)
        in_graph = self.meeting.largest(self._seconds(graph.replay, graph.replay) / GRAPH_CALLS)
        replays = max(1, min(50, round(GRAPH_SAMPLE_SECONDS / (GRAPH_CALLS * in_graph))))
        # One replay outside the clock brings the ranks together: a collective cannot end before all entered.
        self._take_samples(operation, ask, replays * GRAPH_CALLS, graph.replay, in_graph, result)
        graph.delete()

    def _take_samples(
        self,
        operation: Operation,
        ask: Callable[[int], int],
        calls: int,
        before: Call,
        one_call: float,
        result: Json,
    ) -> None:
        """All that is timed of one size. `ask(n)` asks for n calls; `before` goes ahead of what is timed."""
        result["calls_per_sample"] = calls
        result["samples_seconds"] = [
            self._seconds(lambda: ask(calls), before) / calls for _ in range(int(self.plan["repeats"]))
        ]
        if self.plan.get("single_calls"):
            self._mark("timing calls of %d bytes one by one" % operation.size_bytes)
            self._gather()
            single_calls = int(self.plan["single_calls"])
            result["single_seconds"] = self.ranks.seconds_of_each(operation.call, single_calls, self.lead)
        if self.plan.get("overlap"):
            assert isinstance(self.ranks, NcclRank)
            self._mark("timing %d bytes beside a matrix product" % operation.size_bytes)
            self.overlap = self.overlap or Overlap(self.ranks, self.meeting)
            result["overlap"] = self.overlap.measure(ask, one_call)

    def _seconds(self, work: Call, before: Call) -> float:
        self._gather()
        return self.ranks.seconds_of(work, before)

    def _gather(self) -> None:
        """Let ranks that do not wait for each other in the calls begin together."""
        if self.drifts:
            self.meeting.wait_for_all()

    # -- buffers and what must be in them

    def _first_bytes(self) -> int:
        return max(
            FIRST_CALL_BYTES, least_bytes(self.collective, len(self.group.ranks), self.kind.item_bytes)
        )

    def _operation(self, size_bytes: int) -> Operation:
        item, ranks = self.kind.item_bytes, len(self.group.ranks)
        counts = counts_of(self.collective, size_bytes, ranks, item)
        sends_at, receives_at = (
            in_place_starts(self.collective, counts, self.group_rank) if self.in_place else (0, 0)
        )
        send = self.send_memory[sends_at * item : (sends_at + counts.send) * item]
        receive = self.receive_memory[receives_at * item : (receives_at + counts.receive) * item]
        call = self.ranks.bind(self.collective, counts, send, receive)
        return Operation(measured_bytes(counts, item), counts, send, receive, call)

    def _clear(self, operation: Operation) -> None:
        """Zeros: sums of sums would grow beyond every number."""
        operation.receive.zero_()
        operation.send.zero_()

    def _check(self, operation: Operation) -> bool:
        """Whether one call gives exactly what it must."""
        data = known_data(
            self.collective, operation.counts, self.kind, self.group_rank, len(self.group.ranks)
        )
        return self._gives(operation, data, operation.call)

    def _check_graph(self, operation: Operation, replay: Call) -> bool:
        """Whether the captured calls together do; where that cannot be exact, the eager check stands alone."""
        ranks = len(self.group.ranks)
        data: Optional[KnownData]
        if self.in_place:
            data = repeated_in_place(
                self.collective, operation.counts, self.kind, self.group_rank, ranks, GRAPH_CALLS
            )
        else:
            data = known_data(self.collective, operation.counts, self.kind, self.group_rank, ranks)
        return data is None or self._gives(operation, data, replay)

    def _gives(self, operation: Operation, data: KnownData, work: Call) -> bool:
        operation.receive.fill_(known_bytes.POISON)
        known_bytes.put(self.torch, operation.send, data.brought, self.kind)
        work()
        self.ranks.wait()
        return known_bytes.holds(self.torch, operation.receive, data.expected, self.kind)

    def _mark(self, text: str) -> None:
        if len(self.variants) > 1:
            text = "variant %d of %d, %s" % (self.variant + 1, len(self.variants), text)
        mark(text)
