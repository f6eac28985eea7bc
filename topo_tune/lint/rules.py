"""Every rule that lint knows: its ID, how bad it is, and what it means in one line."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topo_tune.records.finding import Severity


class Rule(msgspec.Struct, frozen=True):
    """What one ID stands for."""

    severity: Severity
    """of most messages; a message may be milder where the same mistake does no harm"""
    meaning: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTICE

RULES: Mapping[str, Rule] = {
    # How the text is read.
    "file-cut": Rule(_W, "the text is longer than lint reads"),
    "nothing-found": Rule(_N, "the text holds no setting of NCCL"),
    "no-equals-sign": Rule(_W, "a line of nccl.conf has no `=` and is skipped"),
    "export-in-conf": Rule(_E, "a word in front of the name, which NCCL makes a part of it"),
    "space-around-name": Rule(_E, "a space before or behind the name, which NCCL keeps"),
    "quoted-name": Rule(_E, "a quote in front of the name, which NCCL keeps"),
    "comment-too-new": Rule(_W, "a comment with `=` in it, for an NCCL that knows no comments"),
    "carriage-return": Rule(_E, "lines end in CR LF, and this NCCL keeps the CR"),
    "byte-order-mark": Rule(_E, "a byte order mark, which becomes a part of the first name"),
    "nul-byte": Rule(_E, "a NUL, at which NCCL stops reading the line"),
    "too-long": Rule(_E, "a name, value or line longer than NCCL's buffer"),
    "duplicate-name": Rule(_W, "a name set twice in one file"),
    "not-exported": Rule(_W, "a shell variable that no program will see"),
    "export-splits-comma": Rule(_E, "`srun --export` splits a value at its comma"),
    "missing-comma": Rule(_W, "an item of a list without the comma that its neighbours have"),
    "yaml-value-not-text": Rule(_E, "a value that YAML does not read as text, and Kubernetes refuses"),
    # Names.
    "misspelt-name": Rule(_E, "a name that NCCL never read, close to one that it does"),
    "unknown-name": Rule(_W, "a name that NCCL never read"),
    "misnomer": Rule(_E, "a name that people write and NCCL never read"),
    "lower-case-name": Rule(_E, "a name that is not in capitals"),
    "removed-name": Rule(_W, "a name that this NCCL no longer reads"),
    "renamed-name": Rule(_W, "a name that is read under another name now"),
    "too-new-name": Rule(_W, "a name that this NCCL does not read yet"),
    "deprecated-name": Rule(_N, "a name that is still read and has a successor"),
    "not-in-library": Rule(_W, "a name that the given library does not contain"),
    "framework-name": Rule(_N, "a name that the framework reads, not NCCL"),
    "plugin-name": Rule(_N, "a name that a plugin reads, not NCCL"),
    "not-nccl-name": Rule(_N, "a name in nccl.conf that is nobody's in NCCL"),
    "conf-file-in-file": Rule(_W, "`NCCL_CONF_FILE` in a file that NCCL reads: too late"),
    # Values.
    "empty-value": Rule(_W, "an empty value"),
    "quotes-kept": Rule(_E, "quotes that become a part of the value"),
    "inline-comment": Rule(_E, "a comment behind the value, which becomes a part of it"),
    "space-around-value": Rule(_E, "a space before or behind the value, which NCCL keeps"),
    "unexpanded": Rule(_E, "a variable, template or placeholder that nobody fills in"),
    "percent-not-expanded": Rule(_W, "`%h` or `%p` where NCCL does not expand it"),
    "tilde-not-expanded": Rule(_E, "`~` in a path that NCCL opens as it stands"),
    "relative-path": Rule(_N, "a path that depends on the job's working directory"),
    "missing-path": Rule(_W, "a file that is not there"),
    "number-suffix": Rule(_E, "a unit behind a number, which NCCL drops"),
    "boolean-word": Rule(_E, "a word where NCCL reads a number: 0"),
    "not-a-number": Rule(_E, "text where NCCL reads a number"),
    "octal-number": Rule(_W, "a leading zero: NCCL reads an octal number"),
    "number-overflow": Rule(_E, "a number of more than 64 bits"),
    "value-not-allowed": Rule(_E, "a value that NCCL does not know"),
    "out-of-range": Rule(_W, "a number outside of what NCCL takes"),
    "odd-size": Rule(_W, "a buffer size that is no power of two, or too small"),
    "odd-threads": Rule(_W, "a number of threads that NCCL changes"),
    "legacy-level-number": Rule(_N, "a number where a path type is safer"),
    # Algorithms, protocols, devices.
    "unknown-token": Rule(_E, "a word in NCCL_ALGO or NCCL_PROTO that NCCL does not know"),
    "token-too-new": Rule(_E, "a word in NCCL_ALGO or NCCL_PROTO that this NCCL does not know yet"),
    "scope-too-new": Rule(_E, "`function:list` for an NCCL before 2.24"),
    "scope-missing": Rule(_E, "a list behind `;` that names no function"),
    "scope-unknown": Rule(_E, "a function that NCCL does not know"),
    "misplaced-mark": Rule(_E, "`^` or `=` where it is part of a name"),
    "nothing-left": Rule(_E, "a collective that no algorithm is left for"),
    "ll128-forced": Rule(_W, "LL128 forced on, also where NCCL would not trust the hardware"),
    "list-item": Rule(_E, "an item of a device list that matches nothing"),
    "prefix-match": Rule(_N, "a device name that also takes longer names"),
    # Settings that meet.
    "min-above-max": Rule(_W, "a minimum above its maximum"),
    "old-and-new-name": Rule(_W, "a variable and its successor, both set"),
    "too-many-sockets": Rule(_W, "more than 64 sockets for one connection"),
    "sockets-without-threads": Rule(_N, "sockets per thread, and no number of threads"),
    "no-effect-here": Rule(_W, "a setting that another one makes idle"),
    "contradiction": Rule(_E, "two settings that NCCL cannot obey together"),
    "chunk-cut": Rule(_N, "a chunk larger than an eighth of the buffer"),
    "tuner-overruled": Rule(_N, "a tuner plugin, and settings that overrule it"),
    "tuner-file-alone": Rule(_N, "a tuner's table, and no tuner plugin"),
    "network-between-gpus": Rule(_W, "neither P2P nor shared memory within a node"),
    # Worth a second thought.
    "risky-value": Rule(_W, "a value that can corrupt data, hang or end a job"),
    "verbose-log": Rule(_N, "logging that slows every job"),
    "shared-output-file": Rule(_W, "a file that every process writes over"),
    "for-one-job": Rule(_W, "a setting of one job in a file for all jobs"),
    "must-match": Rule(_N, "settings that all ranks of a job must share, in a file of one node"),
    "debugging-only": Rule(_N, "settings that NVIDIA's guide lists under Debugging"),
}
"""In the order of a manual; the IDs are stable."""
