"""Fixtures that tests of several stages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ssh_servers import SshCluster, start_cluster

SERVERS = 9


@pytest.fixture(scope="session")
def ssh_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshCluster]:
    """Nine real SSH servers on loopback; mark the tests that use them with `pytest.mark.ssh`."""
    cluster = start_cluster(tmp_path_factory.mktemp("ssh"), SERVERS)
    yield cluster
    cluster.stop()
