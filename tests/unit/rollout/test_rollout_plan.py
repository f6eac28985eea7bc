"""What is decided before anything is done."""

from __future__ import annotations

import pytest

from topo_tune.errors import MissingCapability, NodeProgramFailed, Refused
from topo_tune.records.inventory import BackendName, Missing
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.rollout.diff import folded_diffs, unified_diff
from topo_tune.rollout.plan import check_agreement, check_conflicts, keys_that_must_match, plan_rollout

RISKY = nccl_env({"NCCL_ALGO": "allreduce:ring", "NCCL_SOCKET_NTHREADS": 4})


def waves(plan):
    return [(wave.name, wave.nodes, wave.measured) for wave in plan.waves]


def test_two_canaries_then_the_rest_of_their_rack_then_rack_by_rack(make_cluster):
    cluster = make_cluster({"a": ("a1", "a2", "a3", "a4"), "b": ("b1", "b2"), "c": ("c1", "c2", "c3")})

    assert waves(cluster.plan()) == [
        ("a/canary", ("a1", "a2"), ("a1", "a2")),
        ("a", ("a3", "a4"), ("a3", "a4")),
        ("b", ("b1", "b2"), ("b1", "b2")),
        ("c", ("c1", "c2", "c3"), ("c1", "c2", "c3")),
    ]


def test_a_wave_of_one_node_is_measured_with_earlier_nodes_of_its_rack(cluster):
    assert waves(cluster.plan())[1] == ("a", ("a3",), ("a3", "a1", "a2"))


def test_where_ranks_must_agree_no_launch_mixes_old_and_new_so_the_last_node_is_a_canary_too(make_cluster):
    cluster = make_cluster(env=RISKY)

    assert waves(cluster.plan()) == [
        ("a", ("a1", "a2", "a3"), ("a1", "a2", "a3")),
        ("b", ("b1", "b2"), ("b1", "b2")),
    ]


def test_where_ranks_must_agree_a_lone_node_is_not_measured_with_nodes_that_have_the_setting(make_cluster):
    cluster = make_cluster(env=RISKY)
    cluster.write(cluster.plan().node("b1"))

    with pytest.raises(Refused, match=r"^b2 would be measured alone"):
        cluster.plan()


def test_where_ranks_must_agree_a_canary_of_one_is_refused_with_the_option_to_change(make_cluster):
    cluster = make_cluster(env=RISKY)

    with pytest.raises(Refused, match=r"^a1 would be measured alone") as caught:
        cluster.plan(canary=1)

    assert "--canary" in str(caught.value.hint)


def test_where_ranks_must_agree_racks_of_one_node_are_refused(make_cluster):
    cluster = make_cluster({"a": ("a1",), "b": ("b1",)}, env=RISKY)

    with pytest.raises(Refused, match=r"^a1,b1 would be measured alone.*`NCCL_ALGO`"):
        cluster.plan(confined=True)


def test_a_cluster_of_one_node_may_change_alone(make_cluster):
    cluster = make_cluster({"a": ("a1",)}, env=RISKY)

    plan = cluster.plan()

    check_agreement(plan, drained=False, confined=False)
    assert waves(plan) == [("a", ("a1",), ("a1",))]


def test_a_first_rack_of_two_nodes_is_one_wave(make_cluster):
    cluster = make_cluster({"a": ("a1", "a2"), "b": ("b1", "b2")})

    assert [wave.name for wave in cluster.plan().waves] == ["a", "b"]


def test_jobs_confined_to_racks_make_every_rack_one_wave(make_cluster):
    cluster = make_cluster({"a": ("a1", "a2", "a3", "a4"), "b": ("b1", "b2")})

    assert [wave.nodes for wave in cluster.plan(confined=True).waves] == [
        ("a1", "a2", "a3", "a4"),
        ("b1", "b2"),
    ]


def test_the_number_of_canaries_can_be_chosen(make_cluster):
    cluster = make_cluster({"a": ("a1", "a2", "a3", "a4")})

    assert [wave.nodes for wave in cluster.plan(canary=1).waves] == [("a1",), ("a2", "a3", "a4")]


def test_a_rack_of_one_node_is_noted_to_be_measured_without_the_network(make_cluster):
    cluster = make_cluster({"a": ("a1",), "b": ("b1",)})

    assert cluster.plan().notes[-1] == "measured on one node, so without the network: a, b"


def test_nodes_that_have_the_setting_are_in_no_wave(cluster):
    plan = cluster.plan()
    cluster.write(plan.node("a1"))
    cluster.write(plan.node("b1"))

    again = cluster.plan()

    assert waves(again) == [("a", ("a2", "a3"), ("a2", "a3")), ("b", ("b2",), ("b2", "b1"))]
    assert "a1,b1: nothing to write, the files are as wanted" in again.notes


def test_missing_nodes_are_in_the_plan_with_their_reason_and_in_no_wave(cluster):
    answers = cluster.answers()
    del answers["b2"]
    lost = (Missing("b2", "unreachable", "no route to host"),)

    plan = plan_rollout(cluster.inventory, RISKY, BackendName.NCCL, answers, lost)

    assert plan.missing == lost
    assert "b2" not in [node for wave in plan.waves for node in wave.nodes]
    assert plan.notes[-1] == (
        "b2: left out, keeps what it has: no route to host; a job that spans it and changed nodes can hang"
    )


def test_no_node_at_all_is_an_error(cluster):
    lost = [Missing(node.name, "unreachable", "no route to host") for node in cluster.inventory.nodes()]

    with pytest.raises(MissingCapability, match="none of 5 nodes"):
        plan_rollout(cluster.inventory, RISKY, BackendName.NCCL, {}, lost)


def test_the_defaults_are_nothing_to_roll_out(cluster):
    with pytest.raises(Refused, match="nothing to roll out"):
        plan_rollout(cluster.inventory, DEFAULTS, BackendName.NCCL, cluster.answers(), ())


def test_an_answer_that_is_no_plan_names_the_node(cluster):
    answers = {**cluster.answers(), "a1": {"hello": 1}}

    with pytest.raises(NodeProgramFailed, match="a1: the writer's plan is not understood"):
        plan_rollout(cluster.inventory, RISKY, BackendName.NCCL, answers, ())


def test_a_variable_that_nobody_knows_counts_as_one_that_must_match():
    env = NcclEnv(
        (("NCCL_ALGO", "x"), ("NCCL_CROSS_NIC", "1"), ("NCCL_NEW", "1"), ("NCCL_SOCKET_NTHREADS", "4"))
    )

    assert keys_that_must_match(env) == ("NCCL_ALGO", "NCCL_CROSS_NIC", "NCCL_NEW")


def test_settings_that_may_differ_need_no_promise(cluster):
    check_agreement(cluster.plan(), drained=False, confined=False)


def test_settings_that_must_match_need_one_of_two_promises_and_are_named(make_cluster):
    cluster = make_cluster(env=RISKY)

    with pytest.raises(Refused, match="agree on `NCCL_ALGO`") as caught:
        check_agreement(cluster.plan(), drained=False, confined=False)

    assert "--drained" in str(caught.value.hint)
    assert "--confined" in str(caught.value.hint)


def test_either_promise_is_enough(make_cluster):
    cluster = make_cluster(env=RISKY)

    check_agreement(cluster.plan(), drained=True, confined=False)
    check_agreement(cluster.plan(confined=True), drained=False, confined=True)


def test_the_promise_of_confined_jobs_does_not_cover_a_plan_that_splits_racks(make_cluster):
    cluster = make_cluster(env=RISKY)

    with pytest.raises(Refused):
        check_agreement(cluster.plan(confined=False), drained=False, confined=True)


def without(cluster, *nodes, **options):
    answers = {node: answer for node, answer in cluster.answers().items() if node not in nodes}
    lost = tuple(Missing(node, "unreachable", "no route to host") for node in nodes)
    return plan_rollout(cluster.inventory, cluster.env, BackendName.NCCL, answers, lost, **options)


def test_drained_nodes_that_must_agree_change_all_or_not_at_all(make_cluster):
    cluster = make_cluster(env=RISKY)
    plan = without(cluster, "a3")

    with pytest.raises(Refused, match=r"^a3 would be left out: .*`NCCL_ALGO`") as caught:
        check_agreement(plan, drained=True, confined=False)

    assert "reachable" in str(caught.value.hint)


def test_a_confined_rack_whose_ranks_must_agree_changes_whole_or_not_at_all(make_cluster):
    cluster = make_cluster(env=RISKY)

    with pytest.raises(Refused, match=r"^a3 would be left out"):
        without(cluster, "a3", confined=True)


def test_a_confined_rack_that_is_missing_as_a_whole_keeps_no_other_rack_from_its_change(make_cluster):
    plan = without(make_cluster(env=RISKY), "b1", "b2", confined=True)

    check_agreement(plan, drained=False, confined=True)
    assert [wave.name for wave in plan.waves] == ["a"]


def test_missing_nodes_are_no_obstacle_where_ranks_may_differ(make_cluster):
    check_agreement(without(make_cluster(), "a3"), drained=False, confined=False)


def test_conflicts_are_refused_with_who_and_where_and_the_nodes_folded(cluster):
    for node in ("b1", "b2"):
        (cluster.root(node) / "etc/nccl.conf").write_bytes(b"\nNCCL_SOCKET_NTHREADS=2\n")

    with pytest.raises(Refused) as caught:
        check_conflicts(cluster.plan())

    assert "  b[1-2]: `NCCL_SOCKET_NTHREADS` is set to `2` by /etc/nccl.conf:2" in str(caught.value)


def test_no_conflicts_pass(cluster):
    check_conflicts(cluster.plan())


# --- the diff ---


def test_the_diff_shows_new_directories_and_files_with_mode_and_owner(cluster):
    plan = cluster.plan().node("a1")
    owner = f"{plan.after[0].uid}:{plan.after[0].gid}"

    assert unified_diff(plan).splitlines() == [
        "+ directory /etc/nccl",
        "+ directory /etc/nccl/conf.d",
        f"new file /etc/nccl/conf.d/50-topo-tune.conf, mode 0644, owner {owner}",
        "--- /dev/null",
        "+++ /etc/nccl/conf.d/50-topo-tune.conf",
        "@@ -0,0 +1,2 @@",
        "+NCCL_NSOCKS_PERTHREAD=8",
        "+NCCL_SOCKET_NTHREADS=4",
        f"new file /etc/nccl.conf, mode 0644, owner {owner}",
        "--- /dev/null",
        "+++ /etc/nccl.conf",
        "@@ -0,0 +1,4 @@",
        "+# topo-tune begin: merged from /etc/nccl/conf.d, edit there",
        "+NCCL_NSOCKS_PERTHREAD=8",
        "+NCCL_SOCKET_NTHREADS=4",
        "+# topo-tune end",
    ]


def test_the_diff_tells_of_a_missing_final_newline(cluster):
    lines = unified_diff(cluster.plan().node("a2")).splitlines()

    assert lines[lines.index("-NCCL_DEBUG=WARN") + 1] == "\\ No newline at end of file"


def test_the_diff_spells_control_characters_out(cluster):
    (cluster.root("a1") / "etc/nccl.conf").write_bytes(b"NCCL_DEBUG=\x1b[31mINFO\r\n\xff\n")

    text = unified_diff(cluster.plan().node("a1"))

    assert " NCCL_DEBUG=\\x1b[31mINFO\\x0d" in text.splitlines()
    assert " \\xff" in text.splitlines()


def test_identical_diffs_are_folded_over_their_nodes(make_cluster):
    cluster = make_cluster({"a": ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8")})

    folded = folded_diffs(cluster.plan().nodes)

    assert [nodes for nodes, _ in folded] == ["n[1,6]", "n[2,7]", "n[3-4,8]", "n5"]


def test_a_node_without_a_change_has_an_empty_diff(cluster):
    cluster.write(cluster.plan().node("a1"))

    assert folded_diffs([cluster.plan().node("a1")]) == (("a1", ""),)
