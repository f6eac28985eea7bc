"""`python -m torch.distributed.run`: as much of torchrun as scripts/trial-costs uses."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    standalone, per_node, count, script, *words = sys.argv[1:]
    assert (standalone, per_node) == ("--standalone", "--nproc-per-node")
    of_all = {**os.environ, "WORLD_SIZE": count, "MASTER_PORT": str(os.getpid())}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, *words], env={**of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(int(count))
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
