"""Which layer sets each NCCL variable: the winner, those that it hides, and what never reaches NCCL."""

from __future__ import annotations

import enum

import msgspec


class Layer(enum.Enum):
    """Where a setting stands, strongest first for those that reach NCCL by themselves."""

    ENVIRONMENT = "process environment"
    CONF_FILE = "NCCL_CONF_FILE"
    HOME_FILE = "~/.nccl.conf"
    SYSTEM_FILE = "/etc/nccl.conf"
    UNPLACED_FILE = "a configuration file whose place is not known"
    """a saved file of another name, or one of several of the same name"""
    PROFILE = "profile script"
    """/etc/profile.d and the like: in the environment of login shells only"""
    PAM = "/etc/environment"
    SYSTEMD = "systemd unit"
    SLURMD = "slurmd unit"
    """inherited by jobs unless sbatch exports another environment"""
    TASK_PROLOG = "Slurm prolog"
    """what a task prolog prints as `export NAME=VALUE` is in every task's environment"""
    LAUNCHER = "a job's own file"
    """batch script, launcher options, container arguments"""
    CONTAINER_IMAGE = "container image"
    PLUGIN = "plugin"
    """set by a plugin after it was loaded"""
    DROP_IN = "/etc/nccl/conf.d"
    """read by no NCCL: topo-tune merges it into /etc/nccl.conf"""


class Reach(enum.Enum):
    """Whether a setting takes effect in a process that NCCL is loaded into there."""

    WINS = "wins"
    HIDDEN = "hidden"
    """another layer sets the same name and is stronger"""
    NEVER = "never reaches NCCL"
    """the way it is written keeps it from being read"""
    DEPENDS = "depends on how the job starts"


class SettingOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place that sets one variable."""

    name: str
    value: str
    layer: Layer
    reach: Reach
    path: str | None = None
    line: int | None = None
    reason: str | None = None
    """why it is hidden, never read, or not certain"""
    file_exists: bool | None = None
    """of a winning value that is the whole path of a file: whether the file is there; None where nobody looked"""
