"""What a run leaves: a directory of parquet tables and a manifest, complete after every round.

    manifest.json            method, lab, seed, arguments; versions, hardware, git commit, start
    rounds.parquet           a row a round
    rollouts/000012.parquet  a row a rollout of round 12
    evals.parquet            a row a problem and evaluation
    checkpoint/state.safetensors

Every file is written beside its place and renamed into it, so a reader never meets half a file and a killed process
loses at most the round it was in. Weights are safetensors; nothing is pickled.
"""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.cards import card

FORMAT = 1


class RecordError(OSError):
    """A record cannot be written or read; the message names the file and the cause."""


class Record:
    """A run's record, readable while the run goes on and after a crash. Tables are read at each access."""

    def __init__(self, path):
        self.path = Path(path)
        if not (self.path / "manifest.json").is_file():
            raise RecordError(f"{self.path}: no record here (manifest.json is missing)")

    def __repr__(self):
        return f"Record({str(self.path)!r}: {self.label}, seed {self.manifest['seed']}, {len(self.rounds)} rounds)"

    def _repr_html_(self):
        rows = [("lab", self.manifest["lab"]["lab"]), ("seed", self.manifest["seed"]), ("rounds", len(self.rounds))]
        curve = self.accuracy()
        if len(curve):
            first, last = (f"{row['accuracy']:.3f} (round {row['round']:.0f})" for _, row in curve.iloc[[0, -1]].iterrows())
            rows.append(("held-out accuracy", first if len(curve) == 1 else f"{first} to {last}"))
        return card(f"Record of {self.label}", [*rows, ("path", self.path)])

    @property
    def manifest(self):
        """The manifest as a dict."""
        return json.loads((self.path / "manifest.json").read_text())

    @property
    def label(self):
        """Name of the method."""
        return self.manifest["method"]["name"]

    @property
    def rounds(self):
        """One row a round, a DataFrame: rewards, ratios, counts, seconds by phase, tokens, FLOPs, gradient norm."""
        return self._frame("rounds.parquet")

    @property
    def evals(self):
        """One row a held-out problem and evaluation, a DataFrame: round, problem, level, samples, correct, greedy."""
        return self._frame("evals.parquet")

    def rollouts(self, rounds=None, columns=None):
        """One row a rollout, a DataFrame; `rounds` (numbers) and `columns` (names) limit what is read."""
        import pandas as pd

        wanted = None if rounds is None else {int(r) for r in rounds}
        parts = [p for p in sorted((self.path / "rollouts").glob("*.parquet")) if wanted is None or int(p.stem) in wanted]
        frames = [_read(part, columns) for part in parts]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    def accuracy(self):
        """Held-out avg@k and greedy accuracy by round, with the training time and rollouts spent so far, a DataFrame.

        Columns: round, accuracy, greedy, seconds, rollouts, flops (the last three summed over rounds up to then).
        """
        evals, rounds = self.evals, self.rounds
        if evals.empty:
            return evals.reindex(columns=["round", "accuracy", "greedy", "seconds", "rollouts", "flops"])
        evals = evals.assign(accuracy=evals.correct / evals.samples)
        table = evals.groupby("round")[["accuracy", "greedy"]].mean().reset_index()
        for name in ("seconds", "rollouts", "flops"):
            spent = rounds.set_index("round")[name].cumsum() if len(rounds) else {}
            table[name] = [float(spent[r]) if r in spent else 0.0 for r in table["round"]]
        return table

    def _frame(self, name):
        import pandas as pd

        return _read(self.path / name) if (self.path / name).exists() else pd.DataFrame({"round": []})


def load(path):
    """The `Record` at `path`; RecordError when there is none."""
    return Record(path)


def thin(path, columns=(), rounds=None):
    """Makes a finished record small enough to be kept in a repository: it can be read as before, but not resumed.

    The checkpoint goes, and of the rollouts all but the columns and rounds named: columns () for none, None for all;
    rounds: numbers, None for all.
    """
    record = Record(path)
    (record.path / "checkpoint" / "state.safetensors").unlink(missing_ok=True)
    wanted = None if rounds is None else {int(number) for number in rounds}
    for part in (record.path / "rollouts").glob("*.parquet"):
        if columns == () or (wanted is not None and int(part.stem) not in wanted):
            part.unlink()
        elif columns is not None:
            present = set(pq.read_schema(part).names)
            _write_table(part, pq.read_table(part, columns=[name for name in columns if name in present]))


class Writer:
    """Writes a record; made new, or opened to go on. One process at a time."""

    def __init__(self, path, manifest):
        self.path = Path(path)
        self.rows, self.evaluations = [], None
        if (self.path / "manifest.json").exists():
            self._open()
        else:
            self._create(manifest)

    def round(self, row, rollouts):
        """Adds a round: `row` a dict of scalars with its number under "round", `rollouts` a dict of (R,) columns."""
        number = row["round"]
        with self._writing(f"round {number}"):
            _write_table(self._part(number), pa.table({name: _column(value) for name, value in rollouts.items()}))
            _write_table(self.path / "rounds.parquet", _rows_table([*self.rows, row]))
        self.rows.append(row)

    def evaluation(self, frame):
        """Adds an evaluation, a DataFrame with a `round` column."""
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with self._writing("an evaluation"):
            table = table if self.evaluations is None else pa.concat_tables([self.evaluations, table])
            _write_table(self.path / "evals.parquet", table)
        self.evaluations = table

    def checkpoint(self, tensors, state):
        """Swaps in a new checkpoint: `tensors` name to torch tensor, `state` JSON-ready."""
        from safetensors.torch import save_file

        target = self.path / "checkpoint" / "state.safetensors"
        with self._writing("the checkpoint"), _replacing(target) as temporary:
            save_file(tensors, temporary, metadata={"state": json.dumps(state)})

    def restore(self):
        """(tensors, state) of the checkpoint, None when there is none yet."""
        from safetensors import safe_open

        target = self.path / "checkpoint" / "state.safetensors"
        if not target.exists():
            return None
        with safe_open(target, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["state"])

    def truncate(self, last):
        """Forgets rounds and evaluations after round `last`: they are made again from the checkpoint."""
        self.rows = [row for row in self.rows if row["round"] <= last]
        _write_table(self.path / "rounds.parquet", _rows_table(self.rows)) if self.rows else self._remove("rounds.parquet")
        if self.evaluations is not None:
            keep = pa.compute.less_equal(self.evaluations["round"], last)
            self.evaluations = self.evaluations.filter(keep)
            _write_table(self.path / "evals.parquet", self.evaluations)
        for part in (self.path / "rollouts").glob("*.parquet"):
            if int(part.stem) > last:
                part.unlink()

    def save_failure(self, number, rollouts):
        """Keeps rollouts that stopped a round, tokens included; returns the file's path."""
        target = self.path / f"failed-{number:06d}.parquet"
        ragged = {name: pa.array([value[i].tolist() for i in range(len(rollouts))])
                  for name, value in rollouts.items() if hasattr(value, "offsets")}
        plain = {name: _column(value) for name, value in rollouts.items() if name not in ragged}
        with self._writing("the failed rollouts"):
            _write_table(target, pa.table({**plain, **ragged}))
        return target

    def _create(self, manifest):
        if self.path.exists() and any(self.path.iterdir()):
            raise ValueError(f"out={str(self.path)!r}: the directory holds files that are no record; name an empty or new one")
        with self._writing("the manifest"):
            for folder in ("rollouts", "checkpoint"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            with _replacing(self.path / "manifest.json") as temporary:
                temporary.write_text(json.dumps(manifest, indent=1) + "\n")

    def _open(self):
        for temporary in self.path.rglob("*.writing"):
            temporary.unlink()
        if (self.path / "rounds.parquet").exists():
            self.rows = pq.read_table(self.path / "rounds.parquet").to_pylist()
        if (self.path / "evals.parquet").exists():
            self.evaluations = pq.read_table(self.path / "evals.parquet")

    def _part(self, number):
        return self.path / "rollouts" / f"{number:06d}.parquet"

    def _remove(self, name):
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _writing(self, what):
        try:
            yield
        except OSError as error:
            done = f"rounds 1 to {self.rows[-1]['round']} are kept" if self.rows else "no round was lost"
            cause = error.strerror or str(error).splitlines()[0]
            raise RecordError(f"{self.path}: cannot write {what}: {cause}; {done}, mend the cause and run again") from error


def _read(path, columns=None):
    try:
        return pq.read_table(path, columns=columns).to_pandas()
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _rows_table(rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _column(values):
    values = np.asarray(values)
    return pa.array(values.tolist() if values.ndim > 1 or values.dtype.kind in "UO" else values)


def _write_table(path, table):
    with _replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


@contextmanager
def _replacing(path):
    """A temporary path beside `path` that takes its place when the block ends well, and is removed when it does not."""
    temporary = path.with_name(path.name + ".writing")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
