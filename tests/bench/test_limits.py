"""What the limit counts, on a case checked by hand."""

import numpy as np

from tests.bench import limits
from workbench.rollouts import Ragged, Rollouts


def test_steps_count_rows_and_what_they_see():
    """Two responses to one problem begin alike; another one has a longer prompt."""
    rollouts = Rollouts(
        problem=["a", "a", "b"],
        prompt=Ragged.of([[1, 2], [1, 2], [1, 2, 3]], np.int32),
        response=Ragged.of([[5, 6, 7], [5, 8], [5, 6]], np.int32),
    )
    # After the first token every row goes on, and after the second one the first row alone.
    assert limits.steps(rollouts, share_prefixes=False) == [(3, 3 + 3 + 4), (1, 4)]
    assert limits.steps(rollouts, share_prefixes=True) == [(2, 3 + 4), (1, 4)]
    assert limits.prompt_tokens(rollouts) == 5
