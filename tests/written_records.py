"""Records made by hand with the real writer, for tests of what reads records."""

import json

import numpy as np
import pandas as pd

import workbench as wb
from workbench.records import Writer, checkpoints, exists, journal
from workbench.records.files import JOURNAL, MANIFEST, checkpoint_part, digest_of, rollout_part
from workbench.utils.names import TRAINING_PHASES

SAMPLES = 4


def write(
    path,
    label="a",
    seed=0,
    *,
    scores=((0, 0.25), (2, 0.75)),
    rollouts=(10, 30),
    problems=("p", "q"),
    columns=None,
    arguments=None,
    method=None,
    lab=None,
    data=None,
    rows=None,
):
    """A record at path/label/seed-N.

    scores: (round, accuracy) of each evaluation, in quarters, the same for every problem. rollouts:
    those of each round. columns: further columns of the rounds table, name to one value a round.
    method, lab, arguments, data: of the manifest. rows: the rollouts of each round, a list of
    dicts of columns.
    """
    manifest = {
        "seed": seed,
        "method": {"name": label, **(method or {})},
        "lab": {"lab": "tiny", **(lab or {})},
        "data": data or {},
        "arguments": {"seed": seed, "evaluate_every": 2, **(arguments or {})},
    }
    writer = Writer(path / label / f"seed-{seed}", manifest)
    left = list(scores)
    for i, count in enumerate(rollouts):
        # As a run does: those of earlier rounds first.
        left = _evaluated(writer, left, i, problems)
        row = {"round": i + 1, "rollouts": count, "flops": 2.0 * count, "seconds": 1.0}
        row |= {f"seconds_{phase}": 0.25 for phase in TRAINING_PHASES}
        row |= {name: values[i] for name, values in (columns or {}).items()}
        table = rows[i] if rows else {"problem": np.array(["p"])}
        writer.round(row, {name: np.asarray(value) for name, value in table.items()})
    _evaluated(writer, left, max((number for number, _ in left), default=0), problems)
    return path


def _evaluated(writer, scores, until, problems):
    """Write the evaluations up to a round; those that are left."""
    for number, score in scores:
        if number <= until:
            writer.evaluation(evaluation(number, score, problems))
    return [pair for pair in scores if pair[0] > until]


def evaluation(number, score, problems=("p", "q")):
    """One evaluation in which every problem has the same share of right answers."""
    return pd.DataFrame(
        {
            "problem": list(problems),
            "level": np.arange(len(problems)) + 1,
            "samples": SAMPLES,
            "correct": round(score * SAMPLES),
            "greedy": score > 0.5,
            "round": number,
        }
    )


def curve(path, label, seed, accuracies, *, every=1, rollouts=10, **options):
    """A record evaluated every so many rounds, with accuracies (E,) of any value.

    The held-out set has 1,000 problems of one sample, so that accuracies are kept to .001.
    """
    rounds = every * (len(accuracies) - 1)
    writer = write(path, label, seed, scores=(), rollouts=[rollouts] * rounds, **options)
    writer = Writer(path / label / f"seed-{seed}", {})
    for i, accuracy in enumerate(accuracies):
        right = np.arange(1000) < round(1000 * accuracy)
        frame = pd.DataFrame(
            {
                "problem": [f"p{j}" for j in range(1000)],
                "level": 1,
                "samples": 1,
                "correct": right.astype(int),
                "greedy": right,
                "round": i * every,
            }
        )
        writer.evaluation(frame)
    return path


def sign(path, change=lambda entry: entry):
    """Make the journal of a record that was edited by hand fit the files that it now has.

    change: from an entry of the journal to what takes its place, a round's row or an evaluation.
    """
    _, *entries = [json.loads(line) for line in (path / JOURNAL).read_text().splitlines()]
    journal.begin(path / JOURNAL, digest_of((path / MANIFEST).read_bytes()))
    written = journal.Journal(path / JOURNAL)
    for entry in entries:
        del entry["sha256"]
        entry = change(entry)
        if "row" in entry:
            part = rollout_part(path, entry["row"]["round"])
            entry["rollouts"] = digest_of(part.read_bytes()) if part.exists() else ""
        written.append(entry)
    sign_checkpoint(path, written.sums[-1])


def sign_checkpoint(path, line):
    """Let the checkpoint of a record, where there is one, say that it was made after a line."""
    file = checkpoint_part(path)
    if file.exists():
        tensors, state = checkpoints.load(file)
        tensors = {name: value.clone() for name, value in tensors.items()}
        checkpoints.save(file, tensors, {**state, "record": line})


def with_manifest(path, manifest):
    """Replace a record's manifest by another one, which its journal then names."""
    (path / MANIFEST).write_text(json.dumps(manifest))
    sign(path)


def rounds_so_far(path):
    """How many rounds a record has that may be just at work; 0 before it begins."""
    return len(wb.load(path).rounds) if exists(path) else 0
