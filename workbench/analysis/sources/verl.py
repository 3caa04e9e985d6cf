"""What verl leaves besides its file of metrics: the text of its console, and dumped responses.

The console has "step:1 - critic/score/mean:0.5 - ..." for every step. `trainer.rollout_data_dir`
and `trainer.validation_data_dir` have a file 1.jsonl, 2.jsonl, ... for a step, a response a line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.sources.log import Log, json_lines

SOURCE = "console or dumped responses of verl"
TEXTS = (".log", ".txt", ".out")
STEP = re.compile(r"\bstep:(\d+) - (\S+:.*)")
# A number as it stands, or as NumPy shows it.
VALUE = re.compile(r"(?:np\.\w+\()?([^()]+)\)?")


def fits(path: Path) -> bool:
    """Whether it is a text with a step of verl, or a folder of dumps."""
    if path.is_file():
        return path.suffix in TEXTS and STEP.search(path.read_text("utf-8", "replace")) is not None
    return bool(_dumps(path))


def read(path: Path) -> Log:
    """The metrics of every step that was printed, or the means of the responses of every dump."""
    if path.is_file():
        found = STEP.finditer(path.read_text("utf-8", "replace"))
        return Log(path, SOURCE, [{"step": int(each[1]), **_metrics(each[2])} for each in found])
    log = Log(path, SOURCE, [], notes=["its scores are means of the responses that were dumped"])
    for file in _dumps(path):
        rows, notes = json_lines(file)
        log.notes += notes
        means = pd.DataFrame(rows).select_dtypes(["number", "bool"]).mean()
        log.rows.append({**means.to_dict(), "step": int(file.stem), "responses": len(rows)})
    return log


def _dumps(folder: Path) -> list[Path]:
    """The dumps of a folder, in the order of their steps."""
    files = [each for each in folder.glob("*.jsonl") if each.stem.isdecimal()]
    return sorted(files, key=lambda each: int(each.stem))


def _metrics(text: str) -> dict[str, Any]:
    """The numbers of a printed step."""
    metrics = {}
    for part in text.split(" - "):
        name, _, shown = part.strip().rpartition(":")
        found = VALUE.fullmatch(shown)
        try:
            metrics[name] = float(found[1]) if found else np.nan
        except ValueError:
            continue  # a text
    return metrics
