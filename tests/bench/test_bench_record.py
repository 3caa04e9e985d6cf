"""What writing the record and judging responses cost, as shares of the round they belong to."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from tests.bench import ratios
from tests.bench.test_bench_verifiers import rounds as responses
from workbench.records import Writer
from workbench.verifiers import Math

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
    """The same rounds written again behind many others; the whole table is written each time."""
    rows = run.record.rounds.iloc[2:].to_dict("records")
    Writer(tmp_path / "again", run.record.manifest)
    earlier = [rows[i % REPEATS] | {"round": i + 1} for i in range(before)]
    pd.DataFrame(earlier).to_parquet(tmp_path / "again" / "rounds.parquet", index=False)
    writer = Writer(tmp_path / "again", run.record.manifest)
    shares = []
    for number, row in enumerate(rows, before + 1):
        frame = run.record.rollouts(rounds=[row["round"]])
        columns = {name: frame[name].to_numpy() for name in frame}
        write = partial(writer.round, row | {"round": number}, columns)
        shares.append(ratios.seconds(write) / row["seconds"])
    assert (
        ratios.note(
            f"record: share of a round of 256 rollouts after {before:,} rounds", shares, "<= 0.02"
        )
        < 0.2
    )
    assert len(wb.load(tmp_path / "again").rounds) == before + REPEATS


def test_the_verifier_is_not_the_bottleneck(run):
    rows = run.record.rounds.iloc[2:]
    ratios.note(
        "verifier: share of a round of 256 rollouts", rows["seconds_verify"] / rows["seconds"]
    )
    problems = run.lab.problems.draw(32, 0, 0)[0]
    batches = responses(r"\boxed{\frac{%d}{1}}", 10**6)
    with Math(cache=0) as verifier:
        judging, sampling = ratios.turns(
            lambda: verifier.score(*next(batches)[0]),
            lambda: run.policy.generate(problems, [8] * 32, run.lab.sampling, 0),
            repeats=REPEATS,
        )
    median = ratios.note(
        "verifier without its cache, 256 fractions: its seconds / those of sampling 256 responses",
        np.array(judging) / sampling,
        "<= 1",
    )
    assert median < 4
