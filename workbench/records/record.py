"""What a run leaves: a directory of parquet tables and a manifest, complete after every round.

    manifest.json            method, lab, seed, arguments; versions, hardware, git commit, start
    rounds.parquet           a row a round
    rollouts/000012.parquet  a row a rollout of round 12
    evals.parquet            a row a problem and evaluation
    checkpoint/state.safetensors

    lock.json                the process that writes, or wrote last; see `locks`

Every file is written beside its place, brought to the disk and renamed into it, so a reader never meets half a file and
a killed process loses at most the round it was in. The data of tables and checkpoint carry checksums, so damage done
later is noticed (a parquet footer has none). Weights are safetensors; nothing is pickled.
"""

import json
import os
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench import __version__
from workbench.utils.html import card

FORMAT = 1
LOCK = "lock.json"
LOST = "the run cannot go on without it: put a copy back, or start again in another directory"


class RecordError(OSError):
    """A record cannot be written or read; the message names the file and the cause."""


class RecordWarning(UserWarning):
    """A part of a record cannot be read, or a run goes on under other conditions; the message names it."""


class Record:
    """A run's record, readable while the run goes on and after a crash. Tables are read at each access.

    A table or part that is damaged is left out with a `RecordWarning` that names the file, and the rest stays readable;
    strict=True raises `RecordError` instead. RecordError for a directory without a manifest, or of another format.
    """

    def __init__(self, path, strict=False):
        self.path, self.strict = Path(path), strict
        if not (self.path / "manifest.json").is_file():
            raise RecordError(f"{self.path}: no record here (manifest.json is missing)")
        _ = self.manifest  # a format that cannot be read says so now

    def __repr__(self):
        return f"Record({str(self.path)!r}: {self.label}, seed {self.manifest['seed']}, {len(self.rounds)} rounds)"

    def _repr_html_(self):
        rows = [
            ("lab", self.manifest["lab"]["lab"]),
            ("seed", self.manifest["seed"]),
            ("rounds", len(self.rounds)),
        ]
        curve = self.accuracy()
        if len(curve):
            first, last = (
                f"{row['accuracy']:.3f} (round {row['round']:.0f})"
                for _, row in curve.iloc[[0, -1]].iterrows()
            )
            rows.append(("held-out accuracy", first if len(curve) == 1 else f"{first} to {last}"))
        return card(f"Record of {self.label}", [*rows, ("path", self.path)])

    @property
    def manifest(self):
        """The manifest as a dict."""
        return _manifest(self.path / "manifest.json")

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
        """One row a rollout, a DataFrame; `rounds` (numbers) and `columns` (names) limit what is read.

        Parts differ in columns where a slot had nothing to say; what a part lacks is NaN. ValueError for a column that
        no part has.
        """
        import pandas as pd

        wanted = None if rounds is None else {int(r) for r in rounds}
        parts = [
            p
            for p in sorted((self.path / "rollouts").glob("*.parquet"))
            if wanted is None or int(p.stem) in wanted
        ]
        frames = [frame for part in parts if (frame := self._table(part, columns)) is not None]
        odd = [
            name for name in columns or () if frames and not any(name in frame for frame in frames)
        ]
        if odd:
            raise ValueError(
                f"columns={list(columns)}: no rollouts have {', '.join(map(repr, odd))}"
            )
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    @property
    def warnings(self):
        """What looked sick in the training, a DataFrame of `round` and `warning`; each cause once, see `health`."""
        import pandas as pd

        rounds = self.rounds
        texts = zip(
            rounds["round"], rounds.get("warnings", ())
        )  # records of earlier versions have none
        said = [
            (number, line)
            for number, text in texts
            if isinstance(text, str)
            for line in text.splitlines()
        ]
        return pd.DataFrame(said, columns=["round", "warning"])

    def accuracy(self):
        """Held-out avg@k and greedy accuracy by round, with the training time and rollouts spent so far, a DataFrame.

        Columns: round, accuracy, greedy, seconds, rollouts, flops (the last three summed over rounds up to then).
        """
        evals, rounds = self.evals, self.rounds
        if evals.empty:
            return evals.reindex(
                columns=["round", "accuracy", "greedy", "seconds", "rollouts", "flops"]
            )
        evals = evals.assign(accuracy=evals.correct / evals.samples)
        table = evals.groupby("round")[["accuracy", "greedy"]].mean().reset_index()
        for name in ("seconds", "rollouts", "flops"):
            spent = rounds.set_index("round")[name].cumsum() if len(rounds) else {}
            table[name] = [float(spent[r]) if r in spent else 0.0 for r in table["round"]]
        return table

    def _frame(self, name):
        import pandas as pd

        frame = self._table(self.path / name) if (self.path / name).exists() else None
        return pd.DataFrame({"round": []}) if frame is None else frame

    def _table(self, path, columns=None):
        """The table at `path`, a DataFrame; None when it cannot be read, or is gone because the run was resumed."""
        try:
            return _read(path, columns, lambda table: table.to_pandas())
        except FileNotFoundError:
            return None
        except RecordError as error:
            if self.strict:
                raise
            warnings.warn(f"{error}; it is left out", RecordWarning, stacklevel=4)
            return None


def load(path, strict=False):
    """The `Record` at `path`; RecordError when there is none. strict: see `Record`."""
    return Record(path, strict)


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
            _write_table(
                part, pq.read_table(part, columns=[name for name in columns if name in present])
            )


class Writer:
    """Writes a record; made new, or opened to go on. One process at a time."""

    def __init__(self, path, manifest):
        self.path = Path(path)
        self.rows = []
        if not (self.path / "manifest.json").exists():
            self._create(manifest)
        self._open()

    def round(self, row, rollouts):
        """Adds a round: `row` a dict of scalars with its number under "round", `rollouts` a dict of (R,) columns."""
        number = row["round"]
        with self._writing(f"round {number}"):
            _write_table(
                self._part(number),
                pa.table({name: _column(value) for name, value in rollouts.items()}),
            )
            table = pa.concat_tables(
                [self._table, pa.Table.from_pylist([row])], promote_options="permissive"
            ).combine_chunks()
            _write_table(self.path / "rounds.parquet", table)
        self._table = table
        self.rows.append(row)

    def evaluation(self, frame):
        """Adds an evaluation, a DataFrame with a `round` column."""
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with self._writing("an evaluation"):
            table = (
                table if self.evaluations is None else pa.concat_tables([self.evaluations, table])
            )
            _write_table(self.path / "evals.parquet", table)
        self.evaluations = table

    @property
    def evaluated(self):
        """Rounds that have an evaluation, a set of int."""
        return set() if self.evaluations is None else set(self.evaluations["round"].to_pylist())

    def forget_evaluation(self, number):
        """Removes the evaluation after round `number`."""
        keep = pc.not_equal(self.evaluations["round"], number)
        with self._writing("the evaluations"):
            evaluations = self.evaluations.filter(keep)
            _write_table(self.path / "evals.parquet", evaluations)
        self.evaluations = evaluations

    def checkpoint(self, tensors, state):
        """Swaps in a new checkpoint: `tensors` name to torch tensor, `state` JSON-ready."""
        from workbench.records import checkpoints

        with self._writing("the checkpoint"), _replacing(self._state) as temporary:
            checkpoints.save(temporary, tensors, state)

    def restore(self):
        """(tensors, state) of the checkpoint, None when there is none yet."""
        from workbench.records import checkpoints

        if not self._state.exists():
            return None
        try:
            return checkpoints.load(self._state)
        except OSError as error:
            raise RecordError(f"{self._state}: {_first_line(error)}; {LOST}") from error

    def truncate(self, last):
        """Forgets rounds and evaluations after round `last`: they are made again from the checkpoint."""
        kept = sum(row["round"] <= last for row in self.rows)
        table = self._table.slice(0, kept) if kept else pa.table({})
        with self._writing(f"the record as of round {last}"):
            if kept < len(self.rows):
                _write_table(self.path / "rounds.parquet", table) if kept else self._remove(
                    "rounds.parquet"
                )
            if self.evaluations is not None:
                keep = pc.less_equal(self.evaluations["round"], last)
                if len(evaluations := self.evaluations.filter(keep)) < len(self.evaluations):
                    _write_table(self.path / "evals.parquet", evaluations)
                    self.evaluations = evaluations
            for part in (self.path / "rollouts").glob("*.parquet"):
                if int(part.stem) > last:
                    part.unlink()
        self._table, self.rows = table, self.rows[:kept]

    def save_failure(self, number, rollouts):
        """Keeps rollouts that stopped a round, tokens included; returns the file's path."""
        target = self.path / f"failed-{number:06d}.parquet"
        ragged = {
            name: pa.array([value[i].tolist() for i in range(len(rollouts))])
            for name, value in rollouts.items()
            if hasattr(value, "offsets")
        }
        plain = {name: _column(value) for name, value in rollouts.items() if name not in ragged}
        with self._writing("the failed rollouts"):
            _write_table(target, pa.table({**plain, **ragged}))
        return target

    def _create(self, manifest):
        refuse_other_files(self.path)
        with self._writing("the manifest"):
            self.path.mkdir(parents=True, exist_ok=True)
            with _replacing(self.path / "manifest.json") as temporary:
                temporary.write_text(json.dumps(manifest, indent=1) + "\n")

    def _open(self):
        with self._writing("the record"):
            for folder in ("rollouts", "checkpoint"):
                (self.path / folder).mkdir(exist_ok=True)
            for temporary in self.path.rglob("*.writing"):
                temporary.unlink()
        self._table = self._own("rounds.parquet", pa.table({}))
        self.rows = self._table.to_pylist()
        self.evaluations = self._own("evals.parquet", None)

    def _own(self, name, none):
        """A table that the run needs to go on, `none` where it was not written yet."""
        try:
            return _read(self.path / name) if (self.path / name).exists() else none
        except RecordError as error:
            raise RecordError(f"{error}; {LOST}") from None

    @property
    def _state(self):
        return self.path / "checkpoint" / "state.safetensors"

    def _part(self, number):
        return self.path / "rollouts" / f"{number:06d}.parquet"

    def _remove(self, name):
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _writing(self, what):
        try:
            yield
        except OSError as error:
            done = (
                f"rounds 1 to {self.rows[-1]['round']} are kept"
                if self.rows
                else "no round was lost"
            )
            cause = error.strerror or _first_line(error)
            raise RecordError(
                f"{self.path}: cannot write {what}: {cause}; {done}, mend the cause and run again"
            ) from error


def refuse_other_files(path):
    """ValueError when a directory that is no record holds anything but what a killed start leaves."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"out={str(path)!r}: this is a file; name an empty or new directory")
    if path.exists() and {file.name for file in path.iterdir()} - {LOCK, "manifest.json.writing"}:
        raise ValueError(
            f"out={str(path)!r}: the directory holds files that are no record; name an empty or new one"
        )


def _manifest(path):
    """The manifest at `path` as a dict; RecordError when it is damaged or of another format."""
    try:
        manifest = json.loads(path.read_text())
        found = manifest["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"{path}: cannot be read: {type(error).__name__}: {_first_line(error)}"
        ) from None
    if found != FORMAT:
        made = manifest.get("versions", {}).get("workbench", "of unknown version")
        raise RecordError(
            f"{path}: format {found}, written by workbench {made}; this is workbench {__version__}, which reads "
            f"format {FORMAT}: use the version that wrote it"
        )
    return manifest


def _read(path, columns=None, convert=lambda table: table):
    """The columns of a table that are there; FileNotFoundError, or RecordError when it is damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return convert(
                file.read(columns and [name for name in columns if name in file.schema_arrow.names])
            )
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read: {_first_line(error)}") from None


def _first_line(error):
    return next(iter(str(error).splitlines()), type(error).__name__)


def _column(values):
    values = np.asarray(values)
    return pa.array(values.tolist() if values.ndim > 1 or values.dtype.kind in "UO" else values)


def _write_table(path, table):
    with _replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


@contextmanager
def _replacing(path):
    """A temporary path beside `path` that takes its place when the block ends well, and is removed when it does not."""
    temporary = path.with_name(path.name + ".writing")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # some file systems report a full disk only now
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
