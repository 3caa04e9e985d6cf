"""The first run on a GPU: `make gpu-first-run`, or `python -m examples.gpu_first_run --help`.

It runs doctor, makes a model where none is named, trains by GRPO and by PODS, runs TRL beside
them, then the methods of the five papers at two learning rates each, and writes a report. Each part
runs in a process of its own, because a vLLM that shares its weights with Unsloth keeps its memory
until its process ends. Nothing is downloaded unless a name on the hub is given.

One call works for at most nine minutes, the start of each part included, and ends with status 75
while there is more to do; the next call goes on where it stopped. A part that fails is named in the
report, and the others still run. Only where the model could not be made, or has no room on this
machine, nothing but the report follows.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.gpu_first_run import report, runs, subject, trl_beside
from examples.gpu_first_run.settings import MORE_TO_DO, Settings, parser, write

SHORTEST = 150  # seconds that a part needs to be worth the start of Unsloth and vLLM
REPORT = 20  # seconds that are kept for the report
START = 10  # seconds of a process before it begins to count


def work(part: str, settings: Settings) -> bool:
    """Do one part in this process. True when it is complete."""
    if part == "doctor":
        return runs.doctor(settings)
    if part == "model":
        return subject.make(settings)
    if part == "trl":
        return trl_beside.train(settings)
    if part == "report":
        return report.make(settings)
    return runs.train(settings, part)


def is_done(part: str, settings: Settings) -> bool:
    """Whether an earlier piece has completed a part, or has found that it cannot be done."""
    return part != "report" and (settings.out / "logs" / f"{part}.done").is_file()


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is left to do, within the time; returns the exit status."""
    given = vars(parser().parse_args(arguments))
    part = given.pop("part")
    settings = Settings(**given)
    if part:
        if part not in settings.parts:
            print(f"--part {part}: one of {', '.join(settings.parts)} is needed", file=sys.stderr)
            return 2
        return 0 if work(part, settings) else MORE_TO_DO
    refused = settings.refusal()
    if refused:
        print(refused, file=sys.stderr)
        return 2
    write(settings.file("settings"), settings.of_all_pieces)
    ended = time.monotonic() + settings.seconds
    logs = settings.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    complete = True
    failed = []
    for each in settings.parts:
        # Without a model, or without room for it, nothing can be run.
        hopeless = "model" in failed or not runs.has_room(settings)
        if is_done(each, settings) or (hopeless and each != "report"):
            continue
        left = ended - time.monotonic() - (each != "report") * REPORT
        # The report is made by every piece, of what there is.
        if each != "report" and left < min(SHORTEST, 0.5 * settings.seconds):
            complete = False
            continue
        status = _in_a_process(each, replace(settings, seconds=max(left, 1)), logs)
        if status == 0:
            (logs / f"{each}.done").touch()
            (logs / f"{each}.failed").unlink(missing_ok=True)
        elif status == MORE_TO_DO:
            complete = False
        else:
            failed.append(each)
    if failed:
        print(f"a part has failed; its output is in {logs}", file=sys.stderr)
        return 1
    if not complete:
        print("there is more to do: call this again", file=sys.stderr)
        return MORE_TO_DO
    return 0


def _in_a_process(part: str, settings: Settings, logs: Path) -> int:
    """The exit status of a part in a process of its own, on a CPU in this one."""
    print(f"-- {part}", flush=True)
    if settings.device == "cpu":
        try:
            return 0 if work(part, settings) else MORE_TO_DO
        except Exception:
            traceback.print_exc()
            (logs / f"{part}.failed").write_text(traceback.format_exc())
            return 1
    command = [sys.executable, "-m", "examples.gpu_first_run", "--part", part]
    counted = replace(settings, seconds=max(settings.seconds - START, 1))
    for name, value in vars(counted).items():
        values = value if isinstance(value, list) else [value]
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        # What a killed run has recorded stays, and the next call goes on from there.
        limit = threading.Timer(max(settings.seconds, 1), process.kill)
        limit.start()
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    status = process.returncode
    late = logs / f"{part}.late"
    if limit.finished.is_set():
        status = 1 if late.exists() else MORE_TO_DO
        lines.append("TimeoutError: it was ended by the limit of --seconds; give it more\n")
        late.touch()
    limit.cancel()
    ending = "log" if status in (0, MORE_TO_DO) else "failed"
    (logs / f"{part}.{ending}").write_text("".join(lines))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
