"""What a rollout does, over real folders and the real writer."""

from __future__ import annotations

import errno

import msgspec
import pytest

from topo_tune.errors import BrokenRecord, ConnectionLost, InputError, MeasurementFailed, Refused
from topo_tune.records.bench import Probe
from topo_tune.records.envelope import append_line
from topo_tune.records.nccl_env import nccl_env
from topo_tune.records.rollout import Action
from topo_tune.records.verdict import Outcome
from topo_tune.rollout.execute import SETTLE_SECONDS, Policy

RISKY = nccl_env({"NCCL_ALGO": "allreduce:ring", "NCCL_SOCKET_NTHREADS": 4})


def actions(cluster):
    with cluster.journal() as journal:
        return [(entry.action, entry.wave, entry.node) for entry in journal.entries]


def stopped_note(cluster):
    with cluster.journal() as journal:
        return next(entry.note for entry in reversed(journal.entries) if entry.action is Action.STOPPED)


def raising(error, *nodes):
    def call(node):
        if node in nodes:
            raise error

    return call


# --- the good case ---


def test_a_rollout_that_passes_writes_every_node_and_ends_with_zero(cluster):
    plan = cluster.plan()

    result = cluster.execute(plan)

    assert (result.exit_code, result.kept) == (0, ("a/canary", "a", "b"))
    assert all(not node.is_change for node in cluster.plan().nodes)


def test_each_wave_is_measured_written_proved_and_judged_in_this_order(cluster):
    cluster.execute(cluster.plan())

    assert [action for action, wave, _ in actions(cluster) if wave == "b"] == [
        Action.WAVE_STARTED,
        Action.MEASURED_BEFORE,
        Action.WRITE_INTENDED,
        Action.WRITTEN,
        Action.WRITE_INTENDED,
        Action.WRITTEN,
        Action.PROVED,
        Action.JUDGED,
        Action.WAVE_KEPT,
    ]


def test_every_journal_line_is_an_event(cluster):
    cluster.execute(cluster.plan())

    assert cluster.events == [action.value for action, _, _ in actions(cluster)]


def test_the_journal_tells_which_launches_a_verdict_rests_on(cluster):
    cluster.execute(cluster.plan())

    with cluster.journal() as journal:
        launches = [entry.launches for entry in journal.entries if entry.launches]
    assert launches == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]


def test_a_rollout_that_has_ended_is_not_run_again(cluster):
    plan = cluster.plan()
    first = cluster.execute(plan)
    before = actions(cluster)

    assert cluster.execute(plan) == first
    assert actions(cluster) == before


def test_a_plan_without_changes_is_finished_at_once(cluster):
    cluster.execute(cluster.plan())
    cluster.run = "another-run"

    result = cluster.execute(cluster.plan(), consent=False)

    assert (result.exit_code, result.reason) == (0, "every node has the setting already")
    assert [action for action, _, _ in actions(cluster)] == [Action.PLANNED, Action.FINISHED]


def test_nothing_is_written_without_consent(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()

    result = cluster.execute(plan, consent=False)

    assert cluster.bytes_of() == before
    assert (result.exit_code, result.untouched) == (1, ("a/canary", "a", "b"))


def test_a_plan_with_conflicts_is_refused(cluster):
    (cluster.root("a1") / "etc/nccl.conf").write_bytes(b"NCCL_SOCKET_NTHREADS=2\n")

    with pytest.raises(Refused, match="a1: `NCCL_SOCKET_NTHREADS`"):
        cluster.execute(cluster.plan())


def test_a_journal_of_another_plan_is_refused(cluster):
    cluster.execute(cluster.plan())

    with pytest.raises(Refused, match="another plan"):
        cluster.execute(cluster.plan())


# --- the guard ---


@pytest.mark.parametrize("outcome", [Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.NO_DATA])
def test_a_guard_that_trips_restores_its_wave_byte_for_byte_and_keeps_earlier_ones(cluster, outcome):
    cluster.refused = {"b1": outcome}
    plan = cluster.plan()
    before = cluster.bytes_of("b1", "b2")

    result = cluster.execute(plan)

    assert cluster.bytes_of("b1", "b2") == before
    assert (result.exit_code, result.kept, result.rolled_back) == (1, ("a/canary", "a"), ("b",))
    assert outcome.value in result.reason


def test_a_tripped_canary_leaves_the_other_waves_untouched(cluster):
    cluster.refused = {"a1": Outcome.REGRESSED}
    plan = cluster.plan()
    before = cluster.bytes_of()

    result = cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert (result.rolled_back, result.untouched) == (("a/canary",), ("a", "b"))


def test_earlier_waves_go_too_where_the_policy_says_so(cluster):
    cluster.refused = {"b1": Outcome.REGRESSED}
    plan = cluster.plan()
    before = cluster.bytes_of()

    result = cluster.execute(plan, policy=Policy(launches=2, keep_earlier=False))

    assert cluster.bytes_of() == before
    assert (result.kept, result.rolled_back) == ((), ("a/canary", "a", "b"))


def test_earlier_waves_go_too_where_mixed_settings_could_hang_a_job(make_cluster):
    cluster = make_cluster(env=RISKY, refused={"b1": Outcome.REGRESSED})
    plan = cluster.plan()
    before = cluster.bytes_of()

    cluster.execute(plan)

    assert cluster.bytes_of() == before


def test_earlier_racks_stay_where_jobs_are_confined_to_racks(make_cluster):
    cluster = make_cluster(env=RISKY, refused={"b1": Outcome.REGRESSED})

    assert cluster.execute(cluster.plan(confined=True)).kept == ("a",)


def test_a_rollout_that_tripped_is_not_tried_again_by_a_resume(cluster):
    cluster.refused = {"b1": Outcome.REGRESSED}
    plan = cluster.plan()
    cluster.execute(plan)
    launches, cluster.refused = cluster.launches, {}

    result = cluster.execute(plan)

    assert (result.exit_code, result.rolled_back, cluster.launches) == (1, ("b",), launches)


def test_an_inconclusive_verdict_gets_more_launches_up_to_the_budget(cluster):
    cluster.refused = {"a1": Outcome.INCONCLUSIVE}

    cluster.execute(cluster.plan())

    with cluster.journal() as journal:
        judged = [len(entry.launches) for entry in journal.entries if entry.action is Action.JUDGED]
    assert judged == [2, 4, 6]


@pytest.mark.parametrize(
    ("launches", "more", "most"), [(5, 5, 20), (2, 2, 6), (5, 5, 21), (3, 5, 3), (5, 5, 4), (5, 0, 20)]
)
def test_the_policy_knows_how_often_a_wave_is_judged_at_most(cluster, launches, more, most):
    cluster.refused = {"a1": Outcome.INCONCLUSIVE}
    policy = Policy(launches=launches, more=more, most=most)

    cluster.execute(cluster.plan(), policy=policy)

    assert cluster.events.count("judged") == policy.looks


def test_a_baseline_without_a_number_stops_before_anything_is_written(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    cluster.measure = lambda nodes, purpose, count: ()

    result = cluster.execute(plan)

    assert "no launch before the write gave a number" in result.reason
    assert Action.WRITE_INTENDED not in [action for action, _, _ in actions(cluster)]
    assert cluster.bytes_of() == before


# --- the proof ---


def test_a_setting_that_is_in_force_before_the_write_stops_the_wave(cluster):
    plan = cluster.plan()
    (cluster.root("a2") / "etc/nccl.conf").write_bytes(b"NCCL_SOCKET_NTHREADS=4\n")

    result = cluster.execute(plan)

    assert result.exit_code == 1
    assert "rank 1 on a2 has `NCCL_SOCKET_NTHREADS=4` already" in result.reason
    assert Action.WRITE_INTENDED not in [action for action, _, _ in actions(cluster)]


def test_a_setting_that_does_not_reach_every_rank_is_taken_back(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    honest = cluster.probe
    cluster.probe = lambda nodes: msgspec.structs.replace(honest(nodes), ranks=4)

    result = cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert "`NCCL_NSOCKS_PERTHREAD` should be `8` on every rank: not seen on rank 2, 3" in result.reason
    assert (Action.NOT_PROVED, "a/canary", None) in actions(cluster)


def test_a_setting_with_another_value_on_a_rank_is_taken_back(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    honest = cluster.probe
    cluster.probe = lambda nodes: with_value(honest(nodes), "NCCL_SOCKET_NTHREADS", "1")

    result = cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert "`NCCL_SOCKET_NTHREADS` should be `4` on every rank: `1` on rank 0" in result.reason


def with_value(probe, name, value):
    return msgspec.structs.replace(
        probe,
        settings=tuple(
            msgspec.structs.replace(setting, value=value) if setting.name == name else setting
            for setting in probe.settings
        ),
    )


def test_a_probe_that_fails_proves_nothing(cluster):
    cluster.probe = lambda nodes: Probe(nodes, "", 2, "nccl log", (), error="rank 1 died")

    assert "the probe before the write failed: rank 1 died" in cluster.execute(cluster.plan()).reason


def test_a_back_end_that_reads_no_nccl_variable_proves_nothing_so_nothing_is_written(make_cluster):
    cluster = make_cluster(source="nobody (gloo)")
    plan = cluster.plan()
    before = cluster.bytes_of()

    result = cluster.execute(plan)

    assert (result.exit_code, result.kept) == (1, ())
    assert "the back end reads no NCCL variable" in result.reason
    assert cluster.bytes_of() == before


def test_the_operator_may_accept_what_nobody_can_prove(make_cluster):
    cluster = make_cluster(source="nobody (gloo)")

    result = cluster.execute(cluster.plan(), policy=Policy(launches=2, accept_unproved=True))

    assert result.exit_code == 0
    assert (Action.NOT_PROVED, "a/canary", None) in actions(cluster)
    assert Action.PROVED not in [action for action, _, _ in actions(cluster)]


# --- nodes that fail ---


def test_a_node_lost_before_its_write_stops_the_rollout_and_the_wave_is_put_back(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    cluster.before_write = raising(ConnectionLost("a2", "the session ended"), "a2")

    result = cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert (result.exit_code, result.unsettled, result.untouched) == (3, (), ("a/canary", "a", "b"))
    assert "a2: the session ended" in result.reason


def test_a_node_lost_right_after_its_write_is_put_back_too(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    cluster.after_write = raising(ConnectionLost("a2", "the session ended"), "a2")

    cluster.execute(plan)

    assert cluster.bytes_of() == before


def test_a_node_that_stays_lost_is_reported_plainly_and_the_others_are_put_back(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of("a1")
    cluster.after_write = raising(ConnectionLost("a2", "the session ended"), "a2")
    cluster.before_restore = raising(ConnectionLost("a2", "no route to host"), "a2")

    result = cluster.execute(plan)

    assert cluster.bytes_of("a1") == before
    assert [(m.node, m.reason) for m in result.unsettled] == [("a2", "no route to host")]
    assert "not restored: a2" in stopped_note(cluster)


def test_a_resume_stops_again_while_a_node_stays_lost_and_goes_on_once_it_is_back(cluster):
    plan = cluster.plan()
    lost = raising(ConnectionLost("a2", "no route to host"), "a2")
    cluster.after_write, cluster.before_restore = lost, lost
    cluster.execute(plan)

    still = cluster.execute(plan)
    cluster.after_write, cluster.before_restore = lambda node: None, lambda node: None
    again = cluster.execute(plan)

    assert (still.exit_code, [m.node for m in still.unsettled]) == (3, ["a2"])
    assert (again.exit_code, again.unsettled) == (0, ())


def test_an_edit_between_plan_and_write_is_refused_and_survives(cluster):
    plan = cluster.plan()
    (cluster.root("a2") / "etc/nccl.conf").write_bytes(b"NCCL_DEBUG=TRACE\n")
    before = cluster.bytes_of()

    result = cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert (result.exit_code, result.unsettled) == (3, ())
    assert "was changed since the plan" in result.reason
    assert (Action.WRITE_REFUSED, "a/canary", "a2") in actions(cluster)


def test_an_edit_after_the_write_is_not_rolled_back_over(cluster):
    before = cluster.bytes_of("a1", "a3", "b1", "b2")
    cluster.execute(cluster.plan())
    edited = cluster.root("a2") / "etc/nccl.conf"
    edited.write_bytes(edited.read_bytes() + b"NCCL_DEBUG=TRACE\n")

    result = cluster.rollback()

    assert edited.read_bytes().endswith(b"NCCL_DEBUG=TRACE\n")
    assert cluster.bytes_of("a1", "a3", "b1", "b2") == before
    assert result.exit_code == 3
    assert "+NCCL_DEBUG=TRACE" in result.unsettled[0].reason


def test_a_node_whose_files_read_back_otherwise_is_a_failure(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    honest = cluster.write
    cluster.write = lambda node: honest(node)[:1]

    result = cluster.execute(plan)

    assert "read back otherwise" in result.reason
    assert cluster.bytes_of() == before


# --- writes that nobody saw the end of ---


def late_write(cluster, plan, node):
    """The link is lost, and the writer begins only once its controller has waited for it."""
    at_last = []

    def lose(name):
        if name == node:
            at_last.append(name)
            raise ConnectionLost(name, "the session ended")

    cluster.before_write = lose

    def wait(seconds):
        cluster.before_write = lambda name: None
        cluster.waited.append(seconds)
        for name in at_last:
            cluster.write(plan.node(name))
        at_last.clear()

    cluster.wait_out = wait


def test_a_write_that_lands_late_is_restored_because_the_restore_waits_until_it_is_void(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of()
    late_write(cluster, plan, "a2")

    result = cluster.execute(plan)

    assert cluster.waited == [SETTLE_SECONDS]
    assert cluster.bytes_of() == before
    assert (result.exit_code, result.unsettled) == (3, ())


def test_the_other_nodes_are_restored_before_anything_is_waited_for(cluster):
    plan = cluster.plan()
    before = cluster.bytes_of("a1")
    late_write(cluster, plan, "a2")
    then = []
    wait = cluster.wait_out
    cluster.wait_out = lambda seconds: (then.append(cluster.bytes_of("a1")), wait(seconds))

    cluster.execute(plan)

    assert then == [before]


def test_a_resume_waits_for_what_is_left_of_the_time_in_which_a_write_could_begin(cluster):
    plan = cluster.plan()
    lost = raising(ConnectionLost("a2", "no route to host"), "a2")
    cluster.before_write, cluster.before_restore = lost, lost
    cluster.execute(plan)
    cluster.wait_out = cluster.waited.append
    cluster.passed = SETTLE_SECONDS - 15

    cluster.execute(plan)
    cluster.passed = SETTLE_SECONDS + 1
    cluster.rollback()

    assert cluster.waited == [15]


def test_a_clock_that_was_set_back_makes_no_wait_longer(cluster):
    plan = cluster.plan()
    lost = raising(ConnectionLost("a2", "no route to host"), "a2")
    cluster.before_write, cluster.before_restore = lost, lost
    cluster.execute(plan)
    cluster.wait_out = cluster.waited.append
    cluster.passed = -86400

    cluster.execute(plan)

    assert cluster.waited == [SETTLE_SECONDS]


def test_a_refused_write_is_not_waited_for(cluster):
    plan = cluster.plan()
    (cluster.root("a2") / "etc/nccl.conf").write_bytes(b"NCCL_DEBUG=TRACE\n")
    cluster.wait_out = cluster.waited.append

    cluster.execute(plan)

    assert cluster.waited == []


# --- interruptions and bugs ---


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), MeasurementFailed("x"), ZeroDivisionError()]
)
def test_whatever_comes_in_between_the_wave_is_put_back_and_it_is_raised_again(cluster, error):
    plan = cluster.plan()
    before = cluster.bytes_of()

    def interrupt(nodes, purpose):
        if purpose == "guard-after":
            raise error

    cluster.on_measure = interrupt

    with pytest.raises(type(error)):
        cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert (Action.WAVE_PUT_BACK, "a/canary", None) in actions(cluster)


def test_an_interrupted_rollout_says_so_and_can_be_resumed(cluster):
    plan = cluster.plan()

    def interrupt(nodes, purpose):
        if nodes == ("b1", "b2") and purpose == "guard-after":
            raise KeyboardInterrupt

    cluster.on_measure = interrupt
    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)
    note = stopped_note(cluster)
    cluster.on_measure = lambda nodes, purpose: None

    result = cluster.execute(plan)

    assert note == "interrupted"
    assert (result.exit_code, result.kept) == (0, ("a/canary", "a", "b"))


@pytest.mark.parametrize("line", range(4, 10))
def test_a_journal_that_cannot_be_written_any_more_does_not_keep_nodes_from_their_old_bytes(cluster, line):
    plan = cluster.plan()
    before = cluster.bytes_of()
    written = []

    def append(path, entry):
        written.append(entry)
        if len(written) >= line:
            raise OSError(errno.ENOSPC, "No space left on device")
        append_line(path, entry)

    with pytest.raises(BrokenRecord, match="No space left"):
        cluster.execute(plan, append=append)

    assert cluster.bytes_of() == before


def test_a_guard_that_trips_while_the_journal_is_lost_still_restores(cluster):
    cluster.refused = {"a1": Outcome.REGRESSED}
    plan = cluster.plan()
    before = cluster.bytes_of()

    def append(path, entry):
        if entry.action is Action.WAVE_ROLLBACK_STARTED:
            raise OSError(errno.ENOSPC, "No space left on device")
        append_line(path, entry)

    with pytest.raises(BrokenRecord, match="No space left"):
        cluster.execute(plan, append=append)

    assert cluster.bytes_of() == before


# --- rollback ---


def test_a_rollback_gives_every_node_its_exact_old_bytes_and_can_be_repeated(cluster):
    before = cluster.bytes_of()
    cluster.execute(cluster.plan())

    first = cluster.rollback()
    second = cluster.rollback()

    assert cluster.bytes_of() == before
    assert (first.exit_code, first.rolled_back) == (0, ("a/canary", "a", "b"))
    assert (second.exit_code, second.reason) == (0, "nothing to roll back")


def test_a_rollback_goes_backwards(cluster):
    cluster.execute(cluster.plan())
    cluster.rollback()

    assert [node for action, _, node in actions(cluster) if action is Action.RESTORED] == [
        "b2",
        "b1",
        "a3",
        "a2",
        "a1",
    ]


@pytest.mark.parametrize("chosen", [{"racks": ["b"]}, {"waves": ["b"]}])
def test_one_rack_or_wave_can_be_rolled_back_alone(cluster, chosen):
    before = cluster.bytes_of("b1", "b2")
    cluster.execute(cluster.plan())
    kept = cluster.bytes_of("a1", "a2", "a3")

    result = cluster.rollback(**chosen)

    assert cluster.bytes_of("b1", "b2") == before
    assert cluster.bytes_of("a1", "a2", "a3") == kept
    assert result.kept == ("a/canary", "a")


def test_a_rack_that_is_not_in_the_plan_is_refused_with_the_nearest_name(make_cluster):
    cluster = make_cluster({"rack1": ("a1", "a2"), "rack2": ("b1", "b2")})
    cluster.execute(cluster.plan())

    with pytest.raises(InputError, match="did you mean `rack1`"):
        cluster.rollback(racks=["rak1"])


def test_a_rollback_without_a_plan_says_that_nothing_was_written(cluster):
    with pytest.raises(InputError, match="holds no plan"):
        cluster.rollback()


def test_a_node_that_cannot_be_reached_does_not_keep_the_others_from_being_restored(cluster):
    before = cluster.bytes_of("a1", "a2", "a3", "b1")
    cluster.execute(cluster.plan())
    cluster.before_restore = raising(ConnectionLost("b2", "no route to host"), "b2")

    first = cluster.rollback()
    cluster.before_restore = lambda node: None
    second = cluster.rollback()

    assert cluster.bytes_of("a1", "a2", "a3", "b1") == before
    assert (first.exit_code, [m.node for m in first.unsettled]) == (3, ["b2"])
    assert (second.exit_code, second.unsettled) == (0, ())


def test_where_ranks_must_agree_a_rollout_that_stops_half_way_says_who_has_the_setting(make_cluster):
    cluster = make_cluster(env=RISKY)
    cluster.before_write = raising(ConnectionLost("b1", "no route to host"), "b1")

    result = cluster.execute(cluster.plan())

    assert "only a[1-3] have the setting" in result.reason


def test_where_ranks_must_agree_an_interrupted_rollout_says_who_has_the_setting(make_cluster):
    cluster = make_cluster(env=RISKY)

    def interrupt(nodes, purpose):
        if nodes == ("b1", "b2"):
            raise KeyboardInterrupt

    cluster.on_measure = interrupt
    with pytest.raises(KeyboardInterrupt):
        cluster.execute(cluster.plan())

    assert stopped_note(cluster).startswith("interrupted; only a[1-3] have the setting")
