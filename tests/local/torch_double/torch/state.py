"""What the doubles of this process share: a clock that only calls move, and the trouble that $DOUBLE asks for.

$DOUBLE is `WHAT@RANK`: `hang@1`, `wrong@0`, ... Most of it happens at the call whose result is checked.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SECONDS_A_CALL = 160e-6
SECONDS_A_SLOW_CALL = 50e-3
AT_CALL = 2
"""a rank's first call is a greeting, its second one is checked"""
BUSY_UNTIL_CALL = 8
"""behind the first two calls before the samples"""
LATE = 100
"""calls by which the checks before the samples are over"""
FLOOD_PIECES = 512

rank: int | None = None
_now = 0.0


def clock() -> float:
    """Moves with each call, so that what a rank decides by time is always the same."""
    return _now


def pass_time(seconds: float) -> None:
    global _now
    _now += seconds


def seconds_of_call(call: int) -> float:
    is_slow = trouble() == "slow" or (trouble() == "busy" and call <= BUSY_UNTIL_CALL)
    return SECONDS_A_SLOW_CALL if is_slow else SECONDS_A_CALL


def trouble() -> str:
    return os.environ.get("DOUBLE", "").partition("@")[0]


def is_mine(wanted: str) -> bool:
    of = os.environ.get("DOUBLE", "").partition("@")[2]
    return trouble() == wanted and int(of or 0) == rank


def go_wrong() -> None:
    if is_mine("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if is_mine("exit"):
        os.write(2, b"my last words\n")
        os._exit(3)
    if is_mine("raise"):
        raise RuntimeError("no luck today\n\nwith details")
    if is_mine("flood"):
        for _ in range(FLOOD_PIECES):
            os.write(2, b"x" * 1023 + b"\n" + b"y" * 64512)
    if is_mine("pause"):
        time.sleep(0.8)
    while is_mine("hang"):
        time.sleep(60)


def spoils(call: int, *, in_graph: bool) -> bool:
    """Whether this rank's result of a call is to be wrong."""
    return (
        (call == AT_CALL and is_mine("wrong"))
        or (in_graph and is_mine("wrong-in-graph"))
        or (call > LATE and is_mine("wrong-late"))
    )


def first_time(name: str) -> bool:
    try:
        (Path(os.environ["DOUBLE_FOLDER"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def trace(text: str) -> None:
    """One line for the test that named a file in $DOUBLE_TRACE."""
    if "DOUBLE_TRACE" in os.environ:
        with open(os.environ["DOUBLE_TRACE"], "a") as file:
            file.write(f"{rank} {text}\n")


def write_whole(place: Path, data: bytes) -> None:
    """A file that is there with all of its bytes or not at all."""
    temporary = place.with_name(f"{place.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.rename(place)


def read_when_there(place: Path) -> bytes:
    while True:
        try:
            return place.read_bytes()
        except FileNotFoundError:
            time.sleep(0.0002)
