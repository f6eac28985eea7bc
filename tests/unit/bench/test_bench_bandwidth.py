"""algbw and busbw from size and time, against what nccl-tests printed on real clusters.

Rows are quoted from: superbenchmark (tests/data/nccl_allreduce.log, MIT), aks-rdma-infiniband
(tests/expected-output.md, MIT), deepops (docs/slurm-cluster/slurm-perf-cluster.md, BSD-3-Clause), and MLPerf Training
results v4.0 (Oracle) and v5.0 (Google), Apache-2.0.
"""

from __future__ import annotations

import pytest

from topo_tune.records.units import algbw_gb_per_s, busbw_factor

ROWS = [
    # ranks, size, microseconds, algbw, busbw
    pytest.param(8, 53687090, 287.0, 187.07, 327.37, id="8x H100"),
    pytest.param(8, 53687090, 287.6, 186.67, 326.68, id="8x H100 in place"),
    pytest.param(16, 8192, 50.79, 0.16, 0.30, id="2x8 A100 small"),
    pytest.param(16, 2097152, 124.0, 16.91, 31.70, id="2x8 A100 middle"),
    pytest.param(16, 8589934592, 86026, 99.85, 187.22, id="2x8 A100 large"),
    pytest.param(32, 1048576, 135.3, 7.75, 15.02, id="4x8 A100 small"),
    pytest.param(32, 4294967296, 43440, 98.87, 191.56, id="4x8 A100 large"),
    pytest.param(64, 1731821448, 14196, 122.00, 240.18, id="8x8 H200"),
    pytest.param(64, 1731821448, 14281, 121.27, 238.74, id="8x8 H200 in place"),
]

ROUNDING = 0.006
"""two decimals are printed"""
TIME_ROUNDING = 4e-4
"""the time is printed with four or five digits"""


@pytest.mark.parametrize(("ranks", "size", "microseconds", "algbw", "busbw"), ROWS)
def test_bandwidths_are_those_of_nccl_tests(
    ranks: int, size: int, microseconds: float, algbw: float, busbw: float
) -> None:
    found = algbw_gb_per_s(size, microseconds * 1e-6)

    assert found == pytest.approx(algbw, abs=ROUNDING, rel=TIME_ROUNDING)
    assert found * busbw_factor("all_reduce", ranks) == pytest.approx(busbw, abs=ROUNDING, rel=TIME_ROUNDING)
