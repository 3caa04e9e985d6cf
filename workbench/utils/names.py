"""Names and choices that several folders use, in one place that costs nothing to import.

The command line completes and explains them without loading numpy or torch. Tests hold them against
the functions and classes that they name.
"""

import functools
import importlib.metadata
import pkgutil
import re

# The five papers that the notebooks reproduce, and the baselines that they share.
PAPERS = ("grpo", "dapo", "gspo", "dr_grpo", "pods", "ar3po", "knapsack", "aero", "cbs")


def _further_papers() -> tuple[str, ...]:
    """All other methods, in the order of `workbench.methods`.

    Every public function of that file makes a method. They are read from its text, since importing
    it loads torch.
    """
    source = pkgutil.get_data("workbench", "methods.py") or b""
    functions = re.findall(r"^def ([a-z]\w*)\(", source.decode(), re.MULTILINE)
    return tuple(name for name in functions if name not in PAPERS)


# Further papers.
MORE_PAPERS = _further_papers()

# The entry points of installed packages that bring methods of their own.
METHODS_OF_PACKAGES = "workbench.methods"


@functools.cache
def methods_of_packages() -> dict[str, importlib.metadata.EntryPoint]:
    """The methods that installed packages bring, by name; a name of our own stays ours."""
    found = importlib.metadata.entry_points(group=METHODS_OF_PACKAGES)
    return {entry.name: entry for entry in found if entry.name not in (*PAPERS, *MORE_PAPERS)}


def method_names() -> list[str]:
    """All methods that have a name: those of `workbench.methods` and those of packages."""
    return [*PAPERS, *MORE_PAPERS, *methods_of_packages()]


# The functions of `workbench.labs`.
LABS = ("tiny", "transformers", "unsloth")

# Bits of each moment that AdamW keeps: 32 by torch, 8 by bitsandbytes.
OPTIMIZER_BITS = (32, 8)

# The sizes of the base models of the tiny lab.
SIZES = ("small", "large")

# The slots of a method, in the order of a round, and what each one decides.
SLOTS = {
    "curriculum": "which problems come next",
    "allocator": "how many rollouts each problem gets",
    "course": "where a rollout starts and when it stops",
    "reward": "what a rollout earns",
    "replay": "which old responses join",
    "selector": "which rollouts are trained on",
    "advantage": "how good each rollout is",
    "objective": "the loss",
}

# The status of a rollout that has a reward and no verdict: nothing says whether it is right.
GRADED = "graded"
# The status of a rollout that a course has stopped.
STOPPED = "stopped"

# The phases of a round that count as training time; a record has a column seconds_<phase> for each.
TRAINING_PHASES = ("generate", "verify", "schedule", "update")
