"""Carry a plan out, wave by wave, and undo it: every action has a journal line before and after it.

Resume and rollback start from the fold over the journal and use the same steps as the first run. A wave that
was broken off is put back to its old bytes and then runs again from its start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from topo_tune.errors import (
    EXIT_ANSWER_IS_NO,
    EXIT_DONE,
    EXIT_ENVIRONMENT,
    BrokenRecord,
    HostError,
    InputError,
    NodeProgramFailed,
    Refused,
    did_you_mean,
)
from topo_tune.on_node.writer import UNCHANGED
from topo_tune.records.bench import Launch, Probe
from topo_tune.records.inventory import Missing
from topo_tune.records.nodeset import fold as fold_nodes
from topo_tune.records.rollout import (
    UNSETTLED,
    Action,
    FileState,
    JournalEntry,
    NodePlan,
    NodeStatus,
    RolloutPlan,
    RolloutResult,
    RolloutState,
    Wave,
    WaveStatus,
)
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.rollout.interrupts import Interrupts
from topo_tune.rollout.journal import Journal, unanswered_writes
from topo_tune.rollout.plan import check_conflicts
from topo_tune.rollout.proof import can_tell, in_force_already, not_in_force
from topo_tune.rollout.requests import VALID_SECONDS

OnNode: TypeAlias = Callable[[NodePlan], Sequence[FileState]]
"""Writes or restores one node and gives its files as they are then. Raises HostError."""
Measure: TypeAlias = Callable[[tuple[str, ...], str, int], Sequence[Launch]]
"""(nodes, purpose, count) to that many launches, with nothing of the setting in their own environment."""
AskProbe: TypeAlias = Callable[[tuple[str, ...]], Probe]
"""Nodes to what their ranks have, with nothing of the setting in their own environment."""
Judge: TypeAlias = Callable[[Sequence[Launch], Sequence[Launch]], Verdict]
"""(before, after) to a verdict."""
OnEvent: TypeAlias = Callable[[JournalEntry], None]
"""Gets each journal line once it is on disk."""
Consent: TypeAlias = Callable[[RolloutState], bool]
"""Whether to go on from here; asked once, before anything is written."""


WaitOut: TypeAlias = Callable[[float], None]
"""Waits that many seconds."""

SETTLE_SECONDS = VALID_SECONDS + 10.0
"""How long a write that nobody saw the end of may still begin: its validity, and ten seconds for its start."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator may choose about a rollout."""

    launches: int = 5
    """launches before, and as many after, each wave's write"""
    more: int = 5
    """further launches after the write while the verdict is inconclusive"""
    most: int = 20
    """launches after the write at which an inconclusive verdict stands"""
    accept_unproved: bool = False
    """keep a wave although its back end reads no NCCL variable, so that nothing shows the setting in force"""
    keep_earlier: bool = True
    """keep earlier waves when one is rolled back; ignored where mixed settings could hang a job"""

    @property
    def looks(self) -> int:
        """How often one wave may be judged: what `judge_throughput` shares its confidence among."""
        if self.more < 1:
            return 1
        return 1 + max(0, math.ceil((self.most - self.launches) / self.more))


def execute(
    plan: RolloutPlan,
    journal: Journal,
    *,
    write: OnNode,
    restore: OnNode,
    measure: Measure,
    probe: AskProbe,
    judge: Judge,
    on_event: OnEvent,
    consent: Consent,
    policy: Policy,
    wait_out: WaitOut = time.sleep,
) -> RolloutResult:
    """Roll the plan out, or go on where the journal stops.

    Every wave: probe and measure, write, probe and measure again, judge; then keep it, or put its exact old
    bytes back and stop. Only a verdict that lets go on, over a setting shown in force on every rank, keeps a
    wave. A rollout whose journal is over is not run again; its result is given once more.

    The result's exit code: 0 every wave kept; 1 a guard tripped, nothing could be proved, or no consent; 3 a
    node failed. Raises Refused for conflicts or a journal of another plan. Any other exception, an interrupt
    too, is raised again once the wave is put back; a further interrupt waits for that.
    """
    check_conflicts(plan)
    log = _Log(journal, on_event)
    steps = _Steps(plan, log, write, measure, probe, judge, policy)
    with Interrupts() as interrupts:
        undo = _Undo(plan, log, restore, interrupts, wait_out)
        return _all_waves(steps, undo, _begin(plan, log), consent, policy)


def _all_waves(
    steps: _Steps, undo: _Undo, state: RolloutState, consent: Consent, policy: Policy
) -> RolloutResult:
    log = undo.log
    if state.is_over:
        undo.interrupts.hold()
        return _complete(undo, policy)
    if state.remaining() and not consent(state):
        return _result(log.state(), "not agreed to, so nothing was written", EXIT_ANSWER_IS_NO)
    undo.interrupts.hold()
    is_settled = undo.settle()
    undo.interrupts.release()
    if not is_settled:
        return _stop(log, "a wave that was broken off could not be put back everywhere", EXIT_ENVIRONMENT)
    for name in state.remaining():
        stopped = _one_wave(steps, undo, state.plan.wave(name), policy)
        if stopped is not None:
            return stopped
    reason = "every wave is kept" if state.plan.waves else "every node has the setting already"
    log.append(Action.FINISHED, note=reason)
    return _result(log.state(), reason, EXIT_DONE)


def rollback(
    journal: Journal,
    *,
    restore: OnNode,
    on_event: OnEvent,
    waves: Sequence[str] = (),
    racks: Sequence[str] = (),
    wait_out: WaitOut = time.sleep,
) -> RolloutResult:
    """Put the old bytes back on every node that was, or may have been, written; newest first.

    `waves` and `racks` narrow it down to those named. Nodes that have their old bytes count as done, so it
    can be run again. Exit code 0, or 3 when a node could not be restored. An interrupt waits until every node
    was tried. Raises InputError for a name not in the plan.
    """
    log = _Log(journal, on_event)
    state = journal.state()
    if state is None:
        raise InputError(
            f"{journal.path} holds no plan", hint="nothing was written, so nothing needs undoing"
        )
    wanted = _selected(state.plan, waves, racks)
    chosen = [wave for wave in reversed(state.plan.waves) if wave.name in wanted and _is_held(state, wave)]
    if not chosen:
        return _result(state, "nothing to roll back", EXIT_DONE)
    with Interrupts() as interrupts:
        interrupts.hold()
        undo = _Undo(state.plan, log, restore, interrupts, wait_out)
        # No short cut at the first failure: every node that can have its old bytes back shall have them.
        done = [undo.roll_back(wave, "asked for") for wave in chosen]
        if all(done):
            return _stop(log, "rolled back as asked for", EXIT_DONE)
        return _stop(log, "rolled back as asked for, but not on every node", EXIT_ENVIRONMENT)


class _Tripped(Exception):
    """The wave must not be kept, and shall not be tried again."""


class _Log:
    """The journal, and whoever watches it."""

    def __init__(self, journal: Journal, on_event: OnEvent) -> None:
        self._journal, self._on_event = journal, on_event
        self._lost: Exception | None = None
        self._untold: Exception | None = None

    def append(self, action: Action, **fields: Any) -> None:
        self.check()
        self._on_event(self._journal.append(action, **fields))

    def try_append(self, action: Action, **fields: Any) -> None:
        """As `append`, but a full disk here, or a closed terminal, must not keep a node from its old bytes.

        Nothing is lost but the line: the journal still calls the node unsettled, and a restore can be
        repeated.
        """
        if self._lost is not None:
            return
        try:
            entry = self._journal.append(action, **fields)
        except Exception as exc:  # noqa: BLE001 - raised by `check`, once the nodes are safe
            self._lost = exc
            return
        try:
            self._on_event(entry)
        except Exception as exc:  # noqa: BLE001 - likewise; the journal itself goes on
            self._untold = exc

    def check(self) -> None:
        """Raise what `try_append` met."""
        met = self._lost or self._untold
        if met is not None:
            raise met

    def unanswered_writes(self) -> dict[str, float]:
        """Nodes on which a write may yet begin, to the seconds until none can any more."""
        began = unanswered_writes(self._journal.entries)
        left = {node: SETTLE_SECONDS - self._journal.seconds_since(at) for node, at in began.items()}
        # A clock that was set back must not make it longer.
        return {node: min(seconds, SETTLE_SECONDS) for node, seconds in left.items() if seconds > 0}

    def has_plan(self) -> bool:
        return bool(self._journal.entries)

    def state(self) -> RolloutState:
        state = self._journal.state()
        if state is None:
            raise BrokenRecord(f"{self._journal.path} holds no plan")
        return state


class _Undo:
    """The way back to the old bytes."""

    def __init__(
        self, plan: RolloutPlan, log: _Log, restore: OnNode, interrupts: Interrupts, wait_out: WaitOut
    ) -> None:
        self._plan, self.log, self._restore, self.interrupts = plan, log, restore, interrupts
        self._wait_out = wait_out

    def settle(self) -> bool:
        """Put back every wave that was broken off. False when a node could not be restored."""
        # Every wave is tried, whatever becomes of the one before it.
        done = [self.put_back(wave, "broken off") for wave in reversed(self._plan.waves)]
        return all(done)

    def put_back(self, wave: Wave, reason: str) -> bool:
        """Restore what is not settled in a wave, which may then run again. False: a node could not be."""
        state = self.log.state()
        if state.wave(wave.name) in _ROLLED:
            # A guard tripped, or somebody asked for it: this wave shall not run again.
            return self.roll_back(wave, reason)
        unsettled = [node for node in wave.nodes if state.node(node) in UNSETTLED]
        if not unsettled and state.wave(wave.name) is not WaveStatus.IN_PROGRESS:
            return True
        is_done = self._restore_nodes(wave, unsettled)
        if is_done:
            self.log.try_append(Action.WAVE_PUT_BACK, wave=wave.name, note=reason)
        return is_done

    def roll_back(self, wave: Wave, reason: str) -> bool:
        """Restore a wave for good. False when a node could not be: then it can be tried again."""
        self.log.try_append(Action.WAVE_ROLLBACK_STARTED, wave=wave.name, note=reason)
        state = self.log.state()
        held = [node for node in wave.nodes if state.node(node) in (*UNSETTLED, NodeStatus.KEPT)]
        is_done = self._restore_nodes(wave, held)
        if is_done:
            self.log.try_append(Action.WAVE_ROLLED_BACK, wave=wave.name, note=reason)
        return is_done

    def _restore_nodes(self, wave: Wave, nodes: Sequence[str]) -> bool:
        # Nodes to be waited for come last.
        unanswered = self.log.unanswered_writes()
        backwards = tuple(reversed(nodes))
        order = sorted(backwards, key=lambda node: node in unanswered)
        done = [self._restore_whatever_comes(wave, node) for node in order]
        return all(done)

    def _restore_whatever_comes(self, wave: Wave, node: str) -> bool:
        # An interrupt is raised once every node was tried. A restore can be repeated, so the one that was
        # broken off is tried again.
        for _ in range(2):
            try:
                return self._restore_node(wave, node)
            except (KeyboardInterrupt, SystemExit) as exc:
                self.interrupts.remember(exc)
        self.log.try_append(Action.RESTORE_FAILED, wave=wave.name, node=node, note="interrupted twice")
        return False

    def _restore_node(self, wave: Wave, node: str) -> bool:
        plan = self._plan.node(node)
        # A write whose link was lost may yet begin on its node, and would then come after the restore. Once it
        # is no longer valid it cannot; and one that has begun holds the lock that the restore waits for.
        seconds = self.log.unanswered_writes().get(node, 0.0)
        note = f"waiting {seconds:.0f} s for a write that may be under way" if seconds else ""
        self.log.try_append(Action.RESTORE_INTENDED, wave=wave.name, node=node, note=note)
        try:
            if seconds:
                self._wait_out(seconds)
            _check(node, self._restore(plan), plan.before, "restored")
        except HostError as exc:
            self.log.try_append(Action.RESTORE_FAILED, wave=wave.name, node=node, note=exc.reason)
            return False
        except Exception as exc:  # noqa: BLE001 - told with the result; the other nodes come first
            note = f"{type(exc).__name__}: {exc}"
            self.log.try_append(Action.RESTORE_FAILED, wave=wave.name, node=node, note=note)
            return False
        self.log.try_append(Action.RESTORED, wave=wave.name, node=node)
        return True


class _Steps:
    """The steps of one wave."""

    def __init__(
        self,
        plan: RolloutPlan,
        log: _Log,
        write: OnNode,
        measure: Measure,
        probe: AskProbe,
        judge: Judge,
        policy: Policy,
    ) -> None:
        self._plan, self._log, self._policy = plan, log, policy
        self._write, self._measure, self._probe, self._judge = write, measure, probe, judge

    def run(self, wave: Wave) -> None:
        """Raises _Tripped when the wave must not be kept, HostError when a node fails."""
        self._log.append(Action.WAVE_STARTED, wave=wave.name)
        self._look_before(wave)
        before = self._measure_before(wave)
        for node in wave.nodes:
            self._write_node(wave, node)
        self._prove(wave)
        verdict = self._judge_wave(wave, before)
        if not verdict.lets_go_on:
            raise _Tripped(f"{verdict.outcome.value}: {verdict.reason}")
        self._log.append(Action.WAVE_KEPT, wave=wave.name, note=verdict.reason)

    def _look_before(self, wave: Wave) -> None:
        probe = self._probe(wave.measured)
        if not can_tell(probe):
            # Known before the write, so there is no need to write and take it back.
            if not self._policy.accept_unproved:
                raise _Tripped(
                    f"not proved: the back end reads no NCCL variable (source: {probe.source}), "
                    "so nothing could show the setting in force"
                )
            return
        if probe.error is not None:
            raise _Tripped(f"not proved: the probe before the write failed: {probe.error}")
        already = in_force_already(probe, self._plan.env, wave.nodes)
        if already:
            raise _Tripped(f"not proved: before the write, {already[0]}, so somebody else sets it")

    def _measure_before(self, wave: Wave) -> Sequence[Launch]:
        before = tuple(self._measure(wave.measured, "guard-before", self._policy.launches))
        self._log.append(Action.MEASURED_BEFORE, wave=wave.name, launches=[launch.index for launch in before])
        if not any(launch.is_usable for launch in before):
            errors = sorted({launch.error for launch in before if launch.error})
            reasons = "; ".join(errors) or "none ran"
            raise _Tripped(f"no-data: no launch before the write gave a number: {reasons}")
        return before

    def _write_node(self, wave: Wave, node: str) -> None:
        plan = self._plan.node(node)
        self._log.append(Action.WRITE_INTENDED, wave=wave.name, node=node)
        try:
            _check(node, self._write(plan), plan.after, "written")
        except HostError as exc:
            action = Action.WRITE_REFUSED if UNCHANGED in exc.reason else Action.WRITE_FAILED
            self._log.append(action, wave=wave.name, node=node, note=exc.reason)
            raise
        self._log.append(Action.WRITTEN, wave=wave.name, node=node)

    def _prove(self, wave: Wave) -> None:
        probe = self._probe(wave.measured)
        if not can_tell(probe) and self._policy.accept_unproved:
            note = "not proved: back end reads no NCCL variable; accepted by the operator"
            self._log.append(Action.NOT_PROVED, wave=wave.name, note=note)
            return
        problems = not_in_force(probe, self._plan.env)
        if problems:
            self._log.append(Action.NOT_PROVED, wave=wave.name, note="; ".join(problems))
            raise _Tripped(f"not proved: {problems[0]}")
        self._log.append(Action.PROVED, wave=wave.name, note=f"on {probe.ranks} ranks, by {probe.source}")

    def _judge_wave(self, wave: Wave, before: Sequence[Launch]) -> Verdict:
        after: tuple[Launch, ...] = ()
        count = self._policy.launches
        while True:
            fresh = tuple(self._measure(wave.measured, "guard-after", count))
            after += fresh
            verdict = self._judge(before, after)
            indices = [launch.index for launch in after]
            self._log.append(Action.JUDGED, wave=wave.name, verdict=verdict, launches=indices)
            count = min(self._policy.more, self._policy.most - len(after))
            if verdict.outcome is not Outcome.INCONCLUSIVE or count < 1 or not fresh:
                return verdict


def _begin(plan: RolloutPlan, log: _Log) -> RolloutState:
    if not log.has_plan():
        log.append(Action.PLANNED, plan=plan)
    state = log.state()
    if state.plan != plan:
        raise Refused(
            "the journal holds another plan than the one to be rolled out",
            hint="resume with the journal's own plan, or start in a new run folder",
        )
    return state


def _one_wave(steps: _Steps, undo: _Undo, wave: Wave, policy: Policy) -> RolloutResult | None:
    """Run a wave; None when it is kept, else how the rollout ended."""
    try:
        return _run_or_undo(steps, undo, wave, policy)
    except (Exception, KeyboardInterrupt, SystemExit) as exc:
        # Whatever it is, nothing unproved stays behind; then it goes on its way.
        undo.interrupts.hold()
        reason = "interrupted" if isinstance(exc, KeyboardInterrupt) else f"{type(exc).__name__}: {exc}"
        undo.put_back(wave, reason)
        undo.log.try_append(Action.STOPPED, note=reason + _mixed_note(undo.log.state()))
        raise


def _run_or_undo(steps: _Steps, undo: _Undo, wave: Wave, policy: Policy) -> RolloutResult | None:
    try:
        steps.run(wave)
    except _Tripped as exc:
        undo.interrupts.hold()
        undo.roll_back(wave, str(exc))
        return _complete(undo, policy, reason=str(exc))
    except HostError as exc:
        undo.interrupts.hold()
        undo.put_back(wave, exc.message)
        return _stop(undo.log, exc.message, EXIT_ENVIRONMENT)
    return None


def _complete(undo: _Undo, policy: Policy, *, reason: str = "") -> RolloutResult:
    """End a rollout that is over: what is rolling back is rolled back, earlier waves by policy."""
    undo.log.check()
    state = undo.log.state()
    if state.is_finished:
        return _result(state, state.note, EXIT_DONE)
    is_mixing = bool(state.plan.must_match) and not state.plan.confined
    unwanted = _ROLLED[:1] if policy.keep_earlier and not is_mixing else (*_ROLLED[:1], WaveStatus.KEPT)
    tripped = next(name for name, status in reversed(state.waves) if status in _ROLLED)
    for wave in reversed(state.plan.waves):
        # The wave that has just tripped was tried a moment ago; a resumed rollout tries it again.
        if state.wave(wave.name) in unwanted and (wave.name != tripped or not reason):
            undo.roll_back(wave, f"with wave {tripped}")
    why = f": {reason}" if reason else ""
    return _stop(undo.log, f"wave {tripped} was rolled back{why}", EXIT_ANSWER_IS_NO)


_ROLLED = (WaveStatus.ROLLING_BACK, WaveStatus.ROLLED_BACK)


def _stop(log: _Log, reason: str, exit_code: int) -> RolloutResult:
    state = log.state()
    left = state.unsettled()
    reason += f"; not restored: {fold_nodes(left)}" if left else ""
    reason += _mixed_note(state)
    log.append(Action.STOPPED, note=reason)
    return _result(log.state(), reason, exit_code)


def _mixed_note(state: RolloutState) -> str:
    kept = [name for name, status in state.waves if status is WaveStatus.KEPT]
    if not state.plan.must_match or state.plan.confined or not kept or len(kept) == len(state.waves):
        return ""
    nodes = fold_nodes(node for name in kept for node in state.plan.wave(name).nodes)
    return (
        f"; only {nodes} have the setting: until the rollout is resumed or rolled back, "
        "a job that spans others can hang"
    )


def _result(state: RolloutState, reason: str, exit_code: int) -> RolloutResult:
    def of(*statuses: WaveStatus) -> tuple[str, ...]:
        return tuple(name for name, status in state.waves if status in statuses)

    why = dict(state.unreached)
    return RolloutResult(
        kept=of(WaveStatus.KEPT),
        rolled_back=of(*_ROLLED),
        untouched=of(WaveStatus.PENDING, WaveStatus.IN_PROGRESS),
        unsettled=tuple(
            Missing(node, state.node(node).value, why.get(node, "it was not restored"))
            for node in state.unsettled()
        ),
        reason=reason,
        exit_code=exit_code,
        verdicts=state.verdicts,
    )


def _check(node: str, found: Sequence[FileState], expected: tuple[FileState, ...], verb: str) -> None:
    if tuple(found) != expected:
        raise NodeProgramFailed(node, f"its files read back otherwise than {verb}", command="writer")


def _is_held(state: RolloutState, wave: Wave) -> bool:
    is_open = state.wave(wave.name) not in (WaveStatus.PENDING, WaveStatus.ROLLED_BACK)
    return is_open or any(state.node(node) in UNSETTLED for node in wave.nodes)


def _selected(plan: RolloutPlan, waves: Sequence[str], racks: Sequence[str]) -> set[str]:
    known_waves = [wave.name for wave in plan.waves]
    known_racks = [wave.rack for wave in plan.waves]
    for kind, names, known in (("wave", waves, known_waves), ("rack", racks, known_racks)):
        for name in names:
            if name not in known:
                raise InputError(f"the plan has no {kind} `{name}`", hint=did_you_mean(name, known))
    if not waves and not racks:
        return set(known_waves)
    return {wave.name for wave in plan.waves if wave.name in waves or wave.rack in racks}
