"""How simulated whole trials end."""

import numpy as np
import pytest

from papers import alarms
from workbench.analysis.intervals import Measurement
from workbench.analysis.sequential import LOOKS, readings


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.0, 0.03])
def test_a_simulated_trial_ends_as_a_real_one_does(error):
    rng = np.random.default_rng(0)
    logs = rng.normal(rng.choice([-0.2, -0.1, 0.0, 0.15], (40, 1)), 0.1, (40, LOOKS[-1]))
    how = alarms.ends(logs, error, 1)
    for place, values in enumerate(logs):
        for n in LOOKS:
            ratio = Measurement(np.exp(values[:n]), "ratio")
            reading = readings({"arm": ratio}, errors={"arm": error})["arm"]
            if reading.known:
                break
        words = [word for word in ("better", "worse", "alike") if how[word][place]]
        assert (words or ["open"], how["pairs"][place]) == ([reading.verdict], n)
        assert how["mean"][place] == pytest.approx(np.log(ratio.value))


@pytest.mark.long
def test_ten_equal_arms_that_are_tuned_apart_are_called_different_in_one_trial_of_twenty():
    carried = alarms.families(trials=500, arms=10)
    assert carried["alarms"] < 0.075 < alarms.families(trials=500, arms=10, carried=0)["alarms"]
