"""Interrupts and bugs in the middle of an undo: every node is tried, then they are raised or told."""

from __future__ import annotations

import os
import signal

import pytest

from topo_tune.errors import ConnectionLost, InputError
from topo_tune.records.rollout import Action
from topo_tune.records.verdict import Outcome
from topo_tune.rollout.execute import rollback
from topo_tune.rollout.interrupts import Interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def entries(cluster):
    with cluster.journal() as journal:
        return journal.entries


def interrupt_the_measurement(cluster, error=KeyboardInterrupt):
    def interrupt(nodes, purpose):
        if purpose == "guard-after":
            raise error

    cluster.on_measure = interrupt


class Failing:
    """Raises at the first calls, then lets go on."""

    def __init__(self, error, times):
        self.error, self.times = error, times

    def __call__(self, *_):
        self.times -= 1
        if self.times >= 0:
            raise self.error


@pytest.fixture
def raising_handlers():
    """Signals raise KeyboardInterrupt, as the command line has it."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupt_in_the_middle_of_an_undo_is_raised_once_every_node_has_its_old_bytes(cluster, error):
    plan = cluster.plan()
    before = cluster.bytes_of()
    interrupt_the_measurement(cluster)
    cluster.before_restore = Failing(error, 1)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert Action.WAVE_PUT_BACK in [entry.action for entry in entries(cluster)]


def test_a_node_that_is_interrupted_twice_is_unsettled_and_the_others_are_restored(cluster):
    before = cluster.bytes_of("a1", "a2", "a3", "b1")
    cluster.execute(cluster.plan())
    cluster.before_restore = Failing(KeyboardInterrupt(), 2)

    with pytest.raises(KeyboardInterrupt):
        cluster.rollback()

    assert cluster.bytes_of("a1", "a2", "a3", "b1") == before
    with cluster.journal() as journal:
        assert journal.state().unsettled() == ("b2",)


@pytest.mark.parametrize("number", NUMBERS)
def test_signals_during_an_undo_wait_for_its_end(cluster, raising_handlers, number):
    plan = cluster.plan()
    before = cluster.bytes_of()
    interrupt_the_measurement(cluster)
    cluster.before_restore = lambda node: os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert signal.getsignal(number) is signal.default_int_handler


def test_after_a_first_signal_a_second_one_does_not_break_off_the_way_to_the_undo(cluster, raising_handlers):
    plan = cluster.plan()
    before = cluster.bytes_of()

    def hang_up(nodes, purpose):
        if purpose == "guard-after":
            try:
                os.kill(os.getpid(), signal.SIGHUP)
            finally:
                os.kill(os.getpid(), signal.SIGHUP)

    cluster.on_measure = hang_up
    cluster.before_restore = lambda node: os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)

    assert cluster.bytes_of() == before


def test_a_signal_while_a_tripped_wave_is_rolled_back_is_raised_after_it(cluster, raising_handlers):
    cluster.refused = {"a1": Outcome.REGRESSED}
    plan = cluster.plan()
    before = cluster.bytes_of()
    cluster.before_restore = lambda node: os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert entries(cluster)[-1].note.startswith("wave a/canary was rolled back: regressed")


def test_a_signal_during_a_rollback_is_raised_once_every_wave_is_rolled_back(cluster, raising_handlers):
    before = cluster.bytes_of()
    cluster.execute(cluster.plan())
    cluster.before_restore = lambda node: os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        cluster.rollback()

    assert cluster.bytes_of() == before


def test_an_ignored_signal_stays_ignored(raising_handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with Interrupts():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_an_error_is_not_hidden_by_a_signal_that_came_meanwhile(raising_handlers):
    def fail():
        with Interrupts() as interrupts:
            interrupts.hold()
            os.kill(os.getpid(), signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("error", [InputError("not in the cluster file"), ValueError("an oversight")])
def test_any_error_of_one_restore_is_told_and_the_other_nodes_are_restored(cluster, error):
    before = cluster.bytes_of("a1", "a2", "a3", "b1")
    cluster.execute(cluster.plan())
    cluster.before_restore = Failing(error, 1)

    result = cluster.rollback()

    assert cluster.bytes_of("a1", "a2", "a3", "b1") == before
    assert (result.exit_code, [m.node for m in result.unsettled]) == (3, ["b2"])
    assert str(error) in result.unsettled[0].reason


def test_a_watcher_that_fails_keeps_no_node_from_its_old_bytes_and_no_line_from_the_journal(cluster):
    before = cluster.bytes_of()
    cluster.execute(cluster.plan())

    def watch(entry):
        if entry.node == "b2":
            raise ValueError("an oversight")

    with cluster.journal() as journal, pytest.raises(ValueError, match="an oversight"):
        rollback(journal, restore=cluster.restore, on_event=watch)

    assert cluster.bytes_of() == before
    with cluster.journal() as journal:
        assert journal.state().unsettled() == ()


def test_a_wave_rolled_back_for_good_stays_so_when_something_fails_behind_it(cluster):
    cluster.refused = {"a1": Outcome.REGRESSED}
    plan = cluster.plan()
    cluster.before_restore = Failing(ConnectionLost("a2", "no route to host"), 1)

    def watch(entry):
        if entry.action is Action.RESTORE_FAILED:
            raise ValueError("an oversight")

    cluster.on_event = watch
    with pytest.raises(ValueError, match="an oversight"):
        cluster.execute(plan)

    with cluster.journal() as journal:
        state = journal.state()
    assert state.is_over
    assert state.unsettled() == ()


def test_a_signal_while_a_resume_puts_back_what_was_broken_off_stops_it_before_the_next_write(
    cluster, raising_handlers
):
    plan = cluster.plan()
    before = cluster.bytes_of()
    interrupt_the_measurement(cluster)
    cluster.before_restore = Failing(ConnectionLost("a2", "no route to host"), 2)
    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)
    cluster.before_restore = lambda node: os.kill(os.getpid(), signal.SIGINT)
    written = len(cluster.events)

    with pytest.raises(KeyboardInterrupt):
        cluster.execute(plan)

    assert cluster.bytes_of() == before
    assert "write-intended" not in cluster.events[written:]
