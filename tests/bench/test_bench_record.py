"""What writing the record and judging responses cost, against the same work without us."""

import logging
import os
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import workbench as wb
from tests.bench import ratios
from tests.bench.test_bench_verifiers import rounds as responses
from workbench.records import Writer
from workbench.records.files import sync
from workbench.records.tables import column
from workbench.verifiers import Math
from workbench.verifiers.equivalence import equivalence

REPEATS = 7


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 256 rollouts a round, the first two rounds for warming up."""
    run = wb.Run(
        wb.labs.tiny(held_out=0),
        wb.methods.grpo(),
        out=tmp_path_factory.mktemp("record") / "run",
        evaluate_every=0,
        checkpoint_every=1000,
    )
    list(run.rounds(REPEATS + 2, progress=False))
    return run


@pytest.mark.parametrize("before", [100, 1000])
def test_writing_the_record(run, before, tmp_path):
    """The same rounds written again behind many others, which must not cost more.

    How long a disk takes to say that a file is safe differs a hundredfold between disks. So the
    comparison is with writing the same rollouts by pyarrow alone, brought to the disk.
    """
    rows = run.record.rounds.iloc[2:].to_dict("records")
    writer = Writer(tmp_path / "again", run.record.manifest)
    for i in range(before):
        writer.round(rows[i % REPEATS] | {"round": i + 1}, {"round": [i + 1]})
    ours = []
    plain = []
    for number, row in enumerate(rows, before + 1):
        frame = run.record.rollouts(rounds=[row["round"]])
        columns = {name: frame[name].to_numpy() for name in frame}
        ours.append(ratios.seconds(partial(writer.round, row | {"round": number}, columns)))
        rollouts = pa.table({name: column(values) for name, values in columns.items()})
        plain.append(ratios.seconds(partial(plainly_written, tmp_path, rollouts)))
    name = f"record: a round of 256 rollouts after {before:,} rounds"
    against_plain = np.array(ours) / plain
    ratio = ratios.note(f"{name}: ours / pyarrow alone, with fsync", against_plain, "<= 2")
    ratios.note(f"{name}: share of a round", [a / row["seconds"] for a, row in zip(ours, rows)])
    assert ratio < 5
    assert len(wb.load(tmp_path / "again").rounds) == before + REPEATS


def plainly_written(folder, *tables):
    """Each table written, brought to the disk and renamed; the folder brought to the disk."""
    for i, table in enumerate(tables):
        path = folder / f"{i}.parquet"
        with open(path.with_suffix(".new"), "wb") as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").rename(path)
        sync(folder)


def test_the_verifier_is_not_the_bottleneck(run):
    """Its two workers are compared with the same judgements in this process, one by one."""
    rows = run.record.rounds.iloc[2:]
    ratios.note(
        "verifier: share of a round of 256 rollouts", rows["seconds_verify"] / rows["seconds"]
    )
    batches = responses(r"\boxed{\frac{%d}{1}}", 10**6)
    judge = equivalence()
    # It makes all libraries silent, as a worker is.
    logging.disable(logging.NOTSET)

    def directly(texts, answers):
        return [judge({"response": text, "answer": gold}) for text, gold in zip(texts, answers)]

    with Math(cache=0) as verifier:
        ours, plain = ratios.turns(
            lambda: verifier.score(*next(batches)[0]),
            lambda: directly(*next(batches)[0]),
            repeats=REPEATS,
        )
    name = "verifier without its cache, 256 fractions: two workers / one judge in this process"
    assert ratios.note(name, np.array(ours) / plain, "<= 1.5") < 4
