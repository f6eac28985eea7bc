#!/usr/bin/env python3
"""A test of nccl-tests without GPUs: options, tables and JSON files of three generations, and some ways to go wrong.

`install(folder)` puts it there under the names of the tests, with a launcher `mpirun_double`. What it does beyond the
ordinary stands in `double.json` beside it: see `KNOWN`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")

KNOWN: dict[str, Any] = {
    "generation": 2025,
    # which results are wrong: one on this setting
    "wrong_with": "",
    # the setting that makes it hang, with a child that hangs as well
    "hangs_with": "",
    # what it writes and ends with, in place of everything
    "says": "",
    "status": 0,
    # ranks that it lists, as another number than it has
    "ranks": 0,
    "same_gpu": False,
    # sizes that it leaves out at the end
    "skips": 0,
    # half a JSON file, as of a run that was killed
    "cut_report": False,
    "knows_split": True,
}
"""What may stand in `double.json`, and what holds where it does not."""

OPTIONS = {2020: "gbefinwcdo", 2022: "gbefinwcdoGaR", 2025: "gbefinwcdoGaRNJIS"}
"""Letters that each generation knows."""
LONG = {"G": "cudagraph", "N": "run_cycles", "J": "output_file", "I": "per_iter", "a": "average"}


def install(folder: Path, **how: Any) -> Path:
    """The double under the names of all tests, in a folder that is made for them."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable}", 1)
    for name in (*(f"{test}_perf" for test in TESTS), "mpirun_double"):
        path = folder / name
        path.write_text(source)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    change(folder, **how)
    return folder


def change(folder: Path, **how: Any) -> None:
    """What it does from now on."""
    assert set(how) <= set(KNOWN)
    (folder / "double.json").write_text(json.dumps(how))


def main(argv: list[str]) -> int:
    program = Path(argv[0])
    if program.name == "mpirun_double":
        return launched(argv[1:])
    how = KNOWN | json.loads((program.parent / "double.json").read_text())
    if "--help" in argv:
        letters = OPTIONS[how["generation"]]
        print(
            f"USAGE: {program.name} \n\t"
            + " \n\t".join(f"[-{x},--{LONG.get(x, 'word')} <x>] " for x in letters)
        )
        return 0
    if how["says"]:
        print(how["says"], flush=True)
        return int(how["status"])
    given, unknown = options(argv[1:], OPTIONS[how["generation"]])
    if unknown:
        print(f"{program.name}: invalid option -- '{unknown}'\ninvalid option '?'\nUSAGE: {program.name}")
        return 0
    return run(program.name.removesuffix("_perf"), given, how, argv)


def launched(words: list[str]) -> int:
    """`mpirun -np N -H a:n,b:n COMMAND`: as many processes as asked, on pretended hosts."""
    count, slots = int(words[1]), words[3]
    hosts = [host for entry in slots.split(",") for host in [entry.split(":")[0]] * int(entry.split(":")[1])]
    with tempfile.TemporaryDirectory() as folder:
        shared = {"DOUBLE_HOSTS": ",".join(hosts[:count]), "DOUBLE_PIDS": folder}
        processes = [
            subprocess.Popen(words[4:], env={**os.environ, **shared, "DOUBLE_RANK": str(rank)})
            for rank in range(count)
        ]
        return max(process.wait() for process in processes)


def options(words: list[str], letters: str) -> tuple[dict[str, str], str]:
    given: dict[str, str] = {}
    while words:
        letter = words[0][1:2]
        if letter not in letters:
            return given, letter
        value = words[0][2:] or words[1]
        given[letter] = value
        words = words[1:] if words[0][2:] else words[2:]
    return given, ""


def run(test: str, given: dict[str, str], how: dict[str, Any], argv: list[str]) -> int:
    hosts = os.environ.get("DOUBLE_HOSTS", socket.gethostname()).split(",")
    process = int(os.environ.get("DOUBLE_RANK", "0"))
    settings = {name: value for name, value in os.environ.items() if re.match(r"NCCL_(?!TESTS|DEBUG)", name)}
    if os.environ.get("NCCL_DEBUG") == "INFO":
        log(hosts[process], settings)
    if how["hangs_with"] and how["hangs_with"] in settings:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        time.sleep(300)
    pids = gathered(process, len(hosts))
    if process:
        return 0
    per = int(given.get("g", "1"))
    listed = how["ranks"] or per * len(hosts)
    header(test, given, how, hosts, pids, per, listed)
    results = measured(test, given, how, settings, listed)
    wrong = sum(
        half["nwrong"] > 0 for result in results for half in (result["out_of_place"], result["in_place"])
    )
    print(
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : 1.5 \n#",
        flush=True,
    )
    if "J" in given:
        report(given, how, argv, hosts, pids, per, results)
    return 1 if wrong else 0


def gathered(process: int, count: int) -> list[int]:
    """The numbers of all processes of the job, as MPI would gather them."""
    folder = os.environ.get("DOUBLE_PIDS")
    if folder is None:
        return [os.getpid()]
    (Path(folder) / f"{process}.part").write_text(str(os.getpid()))
    (Path(folder) / f"{process}.part").rename(Path(folder) / str(process))
    while not all((Path(folder) / str(other)).exists() for other in range(count)):
        time.sleep(0.01)
    return [int((Path(folder) / str(other)).read_text()) for other in range(count)]


def log(host: str, settings: dict[str, str]) -> None:
    # A launcher gives each process a stream of its own, so that lines stay whole; here one write does.
    lines = [f"{host}:{os.getpid()}:{os.getpid()} [0] NCCL INFO NCCL version 2.28.9+cuda13.0"]
    for name, value in sorted(settings.items()):
        end = "." if value.lstrip("-").isdigit() else ""
        lines.append(
            f"{host}:{os.getpid()}:{os.getpid()} [0] NCCL INFO {name} set by environment to {value}{end}"
        )
    os.write(1, ("\n".join(lines) + "\n").encode())


def header(
    test: str,
    given: dict[str, str],
    how: dict[str, Any],
    hosts: list[str],
    pids: list[int],
    per: int,
    listed: int,
) -> None:
    if how["generation"] == 2025:
        print("# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=22809 nccl-library=22809")
        print(f"# Collective test starting: {test}_perf")
    print(
        f"# nThread 1 nGpus {per} minBytes {given['b']} maxBytes {given['e']} step: 2(factor) warmup iters: 5 "
        f"iters: {given.get('n', 20)} agg iters: 1 validation: {given.get('c', 1)} graph: {given.get('G', 0)}\n#"
    )
    print("# Using devices")
    for rank in range(listed):
        host = hosts[min(rank // per, len(hosts) - 1)]
        number = 7 if how["same_gpu"] else rank + 1
        group = split(rank) if how["knows_split"] else 0
        pid = pids[min(rank // per, len(pids) - 1)]
        print(
            f"#  Rank {rank:2} Group {group:2} Pid {pid:6} on {host:>10} device {rank % per:2} "
            f"[0000:{number:02x}:00] NVIDIA H200"
        )
    print("#")


def split(rank: int) -> int:
    word, _, number = os.environ.get("NCCL_TESTS_SPLIT", "").partition(" ")
    return {"DIV": rank // int(number or 1), "MOD": rank % int(number or 1)}.get(word, 0)


def sizes_of(given: dict[str, str]) -> list[int]:
    first, last = int(given["b"]), int(given["e"])
    sizes = [first]
    while True:
        following = sizes[-1] * int(given["f"]) if "f" in given else sizes[-1] + int(given.get("i", 1 << 20))
        if following > last:
            return sizes
        sizes.append(following)


def measured(
    test: str, given: dict[str, str], how: dict[str, Any], settings: dict[str, str], ranks: int
) -> list[dict[str, Any]]:
    is_old, has_calls = how["generation"] == 2020, given.get("I") == "1"
    half = "     time   algbw   busbw " + (" error" if is_old else "#wrong")
    half += "    i_min    i_max    i_p99    i_cv%" if has_calls else ""
    root = "" if is_old else "    root"
    print(f"#       size         count      type   redop{root}{half}{half}")
    speed = 2.0 if settings.get("NCCL_PROTO") == "LL" else 1.0
    results = []
    sizes = sizes_of(given)
    for _ in range(int(given.get("N", "1"))):
        for size in sizes[: len(sizes) - how["skips"]]:
            wrong = float(how["wrong_with"] in settings) if how["wrong_with"] else 0.0
            # In place it takes a microsecond less, so that the halves can be told apart.
            halves = [
                {
                    "time": (10 + size / 1e3 - less) / speed,
                    "alg_bw": 1.0,
                    "bus_bw": 1.5,
                    "nwrong": wrong if given.get("c", "1") != "0" else 0.0,
                }
                for less in (0.0, 1.0)
            ]
            result = {
                "size": size,
                "count": size // 2,
                "type": given["d"],
                "redop": "sum",
                "root": "-1",
                "out_of_place": halves[0],
                "in_place": halves[1],
            }
            results.append(result)
            row(result, given, how)
    return results


def row(result: dict[str, Any], given: dict[str, str], how: dict[str, Any]) -> None:
    is_old, has_calls = how["generation"] == 2020, given.get("I") == "1"
    words = f"{result['size']:12}  {result['count']:12}  {result['type']:>8}  {result['redop']:>6}"
    words += "" if is_old else f"  {result['root']:>6}"
    for key in ("out_of_place", "in_place"):
        half = result[key]
        wrong = "N/A" if given.get("c") == "0" else f"{half['nwrong']:g}"
        words += f"  {half['time']:7.2f}  {half['alg_bw']:6.2f}  {half['bus_bw']:6.2f}  {wrong:>6}"
        if has_calls:
            calls = [half["time"] + number / 100 for number in range(int(given["n"]))]
            result[f"{key}_per_iter"] = {"skipped_iterations": 0, "times_us": calls}
            words += f"  {min(calls):7.2f}  {max(calls):7.2f}  {max(calls):7.2f}     1.00"
    print(words)


def report(
    given: dict[str, str],
    how: dict[str, Any],
    argv: list[str],
    hosts: list[str],
    pids: list[int],
    per: int,
    results: list[dict[str, Any]],
) -> None:
    ranks = [
        {
            "rank": rank,
            "group": 0,
            "pid": pids[min(rank // per, len(pids) - 1)],
            "hostname": hosts[min(rank // per, len(hosts) - 1)],
            "device": rank % per,
            "device_hex": f"0000:{rank + 1:02x}:00",
            "device_info": "NVIDIA H200",
        }
        for rank in range(per * len(hosts))
    ]
    text = json.dumps(
        {
            "version": 3,
            "start_time": "2026-01-01 10:00:00",
            "args": argv,
            "env": [f"{name}={value}" for name, value in os.environ.items()],
            "nccl_version": 22809,
            "config": {"nthreads": 1, "ngpus": per, "validation": 1, "graph": 0, "devices": ranks},
            "results": results,
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 1.5, "okay": "unchecked"},
            "errors": [],
        }
    )
    Path(given["J"]).write_text(text[: len(text) // 2] if how["cut_report"] else text)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
