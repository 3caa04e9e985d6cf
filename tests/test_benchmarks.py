"""The jobs of the benchmarks, at sizes at which they take seconds. `make bench` is run seldom."""

import json

import pytest

import workbench as wb
from tests.bench import growth, test_bench_scale

SIZE = 4096  # problems; a job begins its round at a place a thousand problems further


@pytest.fixture(scope="module")
def pool():
    return test_bench_scale.Pool(test_bench_scale.problems_of(SIZE))


@pytest.mark.parametrize(
    "value",
    test_bench_scale.OF_THE_ROUND + test_bench_scale.OF_EVERYTHING,
    ids=test_bench_scale.name_of,
)
def test_a_job_of_a_slot_runs(value, pool):
    stored = test_bench_scale.table(pool.problems[:64], 1)
    test_bench_scale.job_of(value, pool, stored)(2)


def test_every_value_of_the_slots_is_measured():
    test_bench_scale.test_every_value_of_the_slots_is_measured()


@pytest.mark.slow
def test_growth_is_measured_in_rounds_of_the_sizes_asked_for():
    measured = growth.one_of_each_round(sizes=(16, 32))
    assert len(measured) == 2 and all(
        seconds > 0 for seconds, _ in json.loads(json.dumps(measured))
    )


@pytest.mark.slow
def test_growth_is_measured_with_buffers_and_records(tmp_path, monkeypatch):
    growth._with_buffer(tmp_path / "buffer", 256)
    assert len(wb.load(tmp_path / "buffer").rounds) == 2
    monkeypatch.setattr(growth, "A_ROUND", 100)
    write = growth._rounds_of_rollouts(tmp_path / "real")
    assert len(wb.load(write(tmp_path / "record", 300)).rounds) == 3
    assert len(growth._columns_by_pyarrow(tmp_path / "record", ["reward", "round"])) == 300
