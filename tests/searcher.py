"""A scripted searcher: twenty random selectors, tried against GRPO on one ledger by the command.

It reads exit statuses and JSON alone, as AGENTS.md says. `test_ledger.py` runs it in a small lab;
`python tests/searcher.py runs/search` runs it in the tiny lab, for a few hours.
"""

import json
import subprocess
import sys

import numpy as np

from workbench.slots import Selection, Slot

IDEAS = 20
AT_ONCE = 4
VERDICTS = {0: "better", 10: "alike", 11: "open", 12: "worse", 13: "not compared"}


class Weighted(Slot):
    """Keeps the share of a round's rollouts that scores highest by random weights."""

    def __init__(self, seed):
        self.seed = seed

    def select(self, rollouts, context):
        rng = np.random.default_rng(self.seed)
        reward, length, luck = rng.normal(size=3)
        share = rng.uniform(0.4, 0.9)
        score = reward * rollouts.reward - length * rollouts.lengths / rollouts.lengths.max()
        score = score + luck * rng.random(len(rollouts))
        kept = np.argsort(-score, kind="stable")[: max(1, int(share * len(rollouts)))]
        return Selection(np.sort(kept))


def idea(seed):
    """A function without arguments, as `module:function` names an arm."""

    def make():
        return Weighted(seed)

    return make


globals().update({f"idea_{seed}": idea(seed) for seed in range(IDEAS)})


def by_shell(*command):
    """Run a command, and return its exit status and what it printed."""
    done = subprocess.run([sys.executable, "-m", "workbench", *command], capture_output=True)
    return done.returncode, done.stdout


def search(folder, call=by_shell, options=()):
    """Try all ideas, a few at a time; returns a line of what happened for each call."""
    lines = []
    for first in range(0, IDEAS, AT_ONCE):
        names = [f"searcher:idea_{seed}" for seed in range(first, first + AT_ONCE)]
        place = ["--out", f"{folder}/trial-{first}", "--ledger", f"{folder}/ideas"]
        status, told = call("trial", *names, *place, *options, "--json")
        if status not in VERDICTS:
            raise RuntimeError(f"{names}: exit status {status}")
        answer = json.loads(told)
        found = {row["arm"]: row["verdict"] for row in answer["arms"]}
        levels = {row["label"]: f"{row['level']:.1e}" for row in answer["ledger"]}
        lines.append(f"status {status} ({VERDICTS[status]}): {found}, levels {levels}")
    return lines


if __name__ == "__main__":
    print("\n".join(search(sys.argv[1])))
