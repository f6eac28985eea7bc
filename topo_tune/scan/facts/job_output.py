"""What a job wrote, which is no output of a node's tool though it may hold one."""

from __future__ import annotations

import re

_OF_A_JOB = re.compile(r"\bNCCL (?:INFO|WARN|[Ee]rror in)\b|^#[ \t]*nThread\b|nccl-tests version", re.M)


def is_of_a_job(text: str) -> bool:
    """Whether a text holds NCCL's log or a table of nccl-tests; many jobs print `nvidia-smi` before they start."""
    return _OF_A_JOB.search(text) is not None
