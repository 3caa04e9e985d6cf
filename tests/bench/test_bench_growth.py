"""Growth of time and memory with size, as exponents; `growth.py` says of what."""

import numpy as np
import pytest

from tests.bench import growth, ratios


@pytest.fixture(scope="module")
def measured():
    return growth.measure()


def test_growth(measured, pytestconfig):
    curves, against_pyarrow = measured
    for name, (sizes, seconds, peaks) in curves.items():
        span = f"{sizes[0]:,} to {sizes[-1]:,} rollouts"
        assert (
            ratios.note(
                f"{name}, {span}: exponent of time", ratios.exponents(sizes, seconds), "<= 1.1"
            )
            < 1.5
        )
        if peaks is not None and np.isfinite(peaks).all():
            ratios.note(
                f"{name}, {span}: exponent of peak memory", ratios.exponents(sizes, peaks), "<= 1.1"
            )
            ratios.note(
                f"{name}, {sizes[-1]:,} rollouts: peak memory",
                np.array(peaks[-1]) / 2**20,
                unit="MiB",
            )
    for name, values in against_pyarrow.items():
        ratios.note(f"{name}, a record of 1,000,000 rollouts: ours / pyarrow alone", values, "<= 4")
    if path := pytestconfig.getoption("--figure"):
        growth.draw(curves, path)
