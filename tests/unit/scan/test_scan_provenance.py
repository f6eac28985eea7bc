"""Which layer sets a variable, and whether it reaches NCCL: NCCL's rules, one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NcclFile, NcclLibrary, NcclPlugin, NodeScan
from topo_tune.scan import provenance
from topo_tune.scan.facts.nccl import nccl_files
from topo_tune.scan.provenance import NOT_OF_THIS_NODE, origins, sources_of, with_settings

HOME, SYSTEM, DROP_IN = "/root/.nccl.conf", "/etc/nccl.conf", "/etc/nccl/conf.d/50-topo-tune.conf"


def file(path: str, text: str) -> NcclFile:
    return nccl_files.parse(text, path=path)


def node(*files: NcclFile, **changes: Any) -> NodeScan:
    return node_scan(nccl_files=files, **changes)


def told(scan: NodeScan, *others: SettingOrigin) -> list[tuple[str, str, Layer, Reach]]:
    return [(o.name, o.value, o.layer, o.reach) for o in origins(scan, others)]


def elsewhere(layer: Layer, value: str = "Tree", path: str = "/etc/x") -> SettingOrigin:
    return SettingOrigin("NCCL_ALGO", value, layer, Reach.DEPENDS, path, 3)


def test_the_environment_goes_before_the_home_file_and_that_before_the_system_file() -> None:
    scan = node(
        file(HOME, "NCCL_ALGO=Tree\nNCCL_PROTO=LL\n"),
        file(SYSTEM, "NCCL_ALGO=NVLS\nNCCL_PROTO=Simple\nNCCL_NET=IB\n"),
        nccl_environment=(("NCCL_ALGO", "Ring"),),
    )

    assert told(scan) == [
        ("NCCL_ALGO", "Ring", Layer.ENVIRONMENT, Reach.WINS),
        ("NCCL_ALGO", "Tree", Layer.HOME_FILE, Reach.HIDDEN),
        ("NCCL_ALGO", "NVLS", Layer.SYSTEM_FILE, Reach.HIDDEN),
        ("NCCL_NET", "IB", Layer.SYSTEM_FILE, Reach.WINS),
        ("NCCL_PROTO", "LL", Layer.HOME_FILE, Reach.WINS),
        ("NCCL_PROTO", "Simple", Layer.SYSTEM_FILE, Reach.HIDDEN),
    ]


def test_what_is_hidden_says_by_what() -> None:
    scan = node(file(HOME, "NCCL_PROTO=LL\n"), file(SYSTEM, "NCCL_PROTO=Simple\n"))

    assert origins(scan)[1].reason == "`/root/.nccl.conf` sets it, and goes before this file"


def test_the_first_line_of_a_name_counts() -> None:
    first, second = origins(node(file(SYSTEM, "NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n")))

    assert (first.value, first.line, first.reach) == ("Ring", 1, Reach.WINS)
    assert (second.line, second.reach, second.reason) == (
        2,
        Reach.HIDDEN,
        "line 1 of this file comes first",
    )


def test_an_empty_variable_hides_what_a_file_sets() -> None:
    scan = node(file(SYSTEM, "NCCL_ALGO=Ring\n"), nccl_environment=(("NCCL_ALGO", ""),))

    empty, hidden = origins(scan)

    assert (empty.reach, hidden.reach) == (Reach.WINS, Reach.HIDDEN)
    assert empty.reason == "is empty: hides what files set, and NCCL takes its default"


def test_the_file_that_the_environment_names_is_a_layer_of_its_own() -> None:
    scan = node(
        file("/opt/a.conf", "NCCL_ALGO=Ring\n"),
        file(SYSTEM, "NCCL_ALGO=Tree\n"),
        nccl_environment=(("NCCL_CONF_FILE", "/opt/a.conf"),),
    )

    assert told(scan)[:2] == [
        ("NCCL_ALGO", "Ring", Layer.CONF_FILE, Reach.WINS),
        ("NCCL_ALGO", "Tree", Layer.SYSTEM_FILE, Reach.HIDDEN),
    ]


def test_a_named_file_means_nothing_to_an_nccl_before_2_23() -> None:
    scan = node(
        file("/opt/a.conf", "NCCL_ALGO=Ring\n"),
        nccl_environment=(("NCCL_CONF_FILE", "/opt/a.conf"),),
        torch_nccl="2.21.5",
    )

    assert origins(scan)[0].reach is Reach.NEVER


def test_naming_a_file_in_a_file_is_useless() -> None:
    (origin,) = origins(node(file(SYSTEM, "NCCL_CONF_FILE=/opt/a.conf\n")))

    assert origin.reach is Reach.NEVER
    assert "from the environment only" in (origin.reason or "")


def test_a_line_that_nccl_misreads_never_reaches_it_and_hides_nothing() -> None:
    scan = node(
        file(HOME, "export NCCL_ALGO=Ring\nNCCL_PROTO =LL\n"),
        file(SYSTEM, "NCCL_ALGO=Tree\nNCCL_PROTO=Simple\n"),
    )

    assert told(scan) == [
        (
            "NCCL_ALGO",
            nccl_files.parse("export NCCL_ALGO=Ring", path="").settings[0].value,
            Layer.HOME_FILE,
            Reach.NEVER,
        ),
        ("NCCL_ALGO", "Tree", Layer.SYSTEM_FILE, Reach.WINS),
        ("NCCL_PROTO", "LL", Layer.HOME_FILE, Reach.NEVER),
        ("NCCL_PROTO", "Simple", Layer.SYSTEM_FILE, Reach.WINS),
    ]


def test_a_carriage_return_is_a_doubt_until_nccl_2_30_3() -> None:
    returned = file(SYSTEM, "NCCL_ALGO=Ring\r\n")

    (old,) = origins(node(returned, torch_nccl="2.28.9"))
    (new,) = origins(node(returned, torch_nccl="2.30.7"))

    assert "carriage return" in (old.reason or "")
    assert new.reason is None


def test_a_drop_in_never_reaches_nccl_by_itself() -> None:
    fragment = file(DROP_IN, "NCCL_ALGO=Ring\n")

    (alone,) = origins(node(fragment))
    _, merged = origins(node(file(SYSTEM, "NCCL_ALGO=Ring\n"), fragment))

    assert (alone.layer, alone.reach) == (Layer.DROP_IN, Reach.NEVER)
    assert "no file that it reads says the same" in (alone.reason or "")
    assert merged.reason == "NCCL reads it from /etc/nccl.conf, which says the same"


def test_files_of_a_node_below_a_root_are_the_same_layers() -> None:
    scan = node(
        file("/srv/n1/root/.nccl.conf", "NCCL_ALGO=Ring\n"), file("/srv/n1" + DROP_IN, "NCCL_NET=IB\n")
    )

    assert [origin.layer for origin in origins(scan)] == [Layer.HOME_FILE, Layer.DROP_IN]


def test_a_saved_file_of_another_name_hides_nothing_and_nothing_hides_it() -> None:
    scan = node(
        file("n1/nccl.conf", "NCCL_ALGO=Tree\n"),
        file("n1/a100.conf", "NCCL_ALGO=Ring\nNCCL_ALGO=NVLS\nexport NCCL_NET=IB\n"),
    )

    found = origins(scan)

    assert [(o.name, o.value, o.layer, o.reach) for o in found if o.name == "NCCL_ALGO"] == [
        ("NCCL_ALGO", "Tree", Layer.SYSTEM_FILE, Reach.WINS),
        ("NCCL_ALGO", "Ring", Layer.UNPLACED_FILE, Reach.DEPENDS),
        ("NCCL_ALGO", "NVLS", Layer.UNPLACED_FILE, Reach.DEPENDS),
    ]
    assert found[1].reason == (
        "a job has it if NCCL reads this file, and where the file lay on the node is not known"
    )
    assert [o.reach for o in found if o.name == "NCCL_NET"] == [Reach.NEVER]


def test_of_several_files_of_one_name_the_one_in_etc_is_the_system_file() -> None:
    placed = node(
        file("n1/backup/nccl.conf", "NCCL_ALGO=Tree\n"), file("n1/etc/nccl.conf", "NCCL_ALGO=Ring\n")
    )
    unplaced = node(file("n1/a/nccl.conf", "NCCL_ALGO=Tree\n"), file("n1/b/nccl.conf", "NCCL_ALGO=Ring\n"))
    homes = node(file("n1/ann/.nccl.conf", "NCCL_ALGO=Tree\n"), file("n1/bob/.nccl.conf", "NCCL_ALGO=Ring\n"))

    assert told(placed) == [
        ("NCCL_ALGO", "Ring", Layer.SYSTEM_FILE, Reach.WINS),
        ("NCCL_ALGO", "Tree", Layer.UNPLACED_FILE, Reach.DEPENDS),
    ]
    for several in (unplaced, homes):
        assert {origin.layer for origin in origins(several)} == {Layer.UNPLACED_FILE}


def test_saved_files_are_ranked_by_what_they_are_and_not_by_their_order() -> None:
    scan = node(file("etc/nccl.conf", "NCCL_ALGO=Tree\n"), file("home/.nccl.conf", "NCCL_ALGO=Ring\n"))

    assert told(scan) == [
        ("NCCL_ALGO", "Ring", Layer.HOME_FILE, Reach.WINS),
        ("NCCL_ALGO", "Tree", Layer.SYSTEM_FILE, Reach.HIDDEN),
    ]


def test_a_profile_or_a_unit_depends_on_how_the_job_starts() -> None:
    found = origins(node(), (elsewhere(Layer.PROFILE), elsewhere(Layer.SLURMD)))

    assert [origin.reach for origin in found] == [Reach.DEPENDS, Reach.DEPENDS]
    assert found[0].reason == (
        "login shells read it; `srun` and commands over ssh may not; topo-tune's own session did not get it"
    )


def test_whether_the_session_has_a_profiles_value_is_said() -> None:
    same = node(nccl_environment=(("NCCL_ALGO", "Tree"),))
    other = node(nccl_environment=(("NCCL_ALGO", "Ring"),))

    assert (origins(same, (elsewhere(Layer.PAM),))[1].reason or "").endswith("own session has this value")
    assert (origins(other, (elsewhere(Layer.PAM),))[1].reason or "").endswith("own session has another value")


def test_a_bashrc_is_read_by_interactive_shells() -> None:
    (origin,) = origins(node(), (elsewhere(Layer.PROFILE, path="/root/.bashrc"),))

    assert (origin.reason or "").startswith("interactive shells read it")


def test_an_env_plugin_makes_every_setting_uncertain() -> None:
    plugin = NcclPlugin("env", "/usr/lib/libnccl-env.so", "system")
    conf = file(SYSTEM, "NCCL_ALGO=Ring\n")

    (new,) = origins(node(conf, plugins=(plugin,), torch_nccl="2.28.9"))
    (old,) = origins(node(conf, plugins=(plugin,), torch_nccl="2.27.3"))
    off = origins(node(conf, plugins=(plugin,), nccl_environment=(("NCCL_ENV_PLUGIN", "none"),)))

    assert (new.reach, old.reach, off[0].reach) == (Reach.DEPENDS, Reach.WINS, Reach.WINS)


def test_versions_come_from_torch_and_from_libraries() -> None:
    scan = node(torch_nccl="2.28.9", nccl_libraries=(NcclLibrary("/a", "2.27.3", "system"),))

    assert provenance.known_versions(scan) == ((2, 27, 3), (2, 28, 9))


def test_a_jobs_value_is_traced_to_the_layers_that_may_have_set_it() -> None:
    scan = with_settings(
        node(file(SYSTEM, "NCCL_ALGO=Ring\nNCCL_IB_TC=0x10\n")), (elsewhere(Layer.SLURMD, "Ring"),)
    )

    found = sources_of({"NCCL_ALGO": "Ring", "NCCL_IB_TC": "16", "NCCL_NET": "IB", "PATH": "/bin"}, scan)

    assert {name: [origin.layer for origin in places] for name, places in found.items()} == {
        "NCCL_ALGO": [Layer.SLURMD, Layer.SYSTEM_FILE],
        "NCCL_IB_TC": [Layer.SYSTEM_FILE],
        "NCCL_NET": [Layer.ENVIRONMENT],
    }
    assert found["NCCL_NET"][0].reason == NOT_OF_THIS_NODE


def test_a_value_that_the_ofi_plugin_sets_may_come_from_it() -> None:
    scan = node(plugins=(NcclPlugin("net", "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "usual folder"),))

    (origin,) = sources_of({"NCCL_PROTO": "simple"}, scan)["NCCL_PROTO"]

    assert (origin.layer, origin.path) == (Layer.PLUGIN, "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so")


def test_asking_again_gives_the_same() -> None:
    scan = with_settings(node(file(SYSTEM, "NCCL_ALGO=Ring\n")), (elsewhere(Layer.PROFILE),))

    assert with_settings(scan) == scan


NAMES = st.sampled_from(["NCCL_ALGO", "NCCL_CONF_FILE", "export NCCL_NET", "NCCL_X ", "#NCCL_Y", "PATH", ""])
LINES = st.lists(st.tuples(NAMES, st.text(max_size=5)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    home=LINES, system=LINES, session=st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_NET"]), st.text())
)
def test_at_most_one_place_wins_a_name(
    home: list[tuple[str, str]], system: list[tuple[str, str]], session: dict[str, str]
) -> None:
    files = (
        file(path, "\n".join(f"{name}={value}" for name, value in lines))
        for path, lines in ((HOME, home), (SYSTEM, system))
    )

    found = origins(node(*files, nccl_environment=tuple(session.items())))

    winners = [origin.name for origin in found if origin.reach is Reach.WINS]
    assert sorted(set(winners)) == sorted(winners)
