"""What is asked: problems, finite pools and endless streams of them.

A `Pool` is a finite set of problems, a `Stream` makes fresh ones without end. The functions make
them: `arithmetic` and `chains` for the tiny lab, `from_rows` and `from_file` for data of your own,
`reasoning_gym` for generated tasks, `hub` for public data sets, `environment` for environments of
the package verifiers.
"""

from workbench.datasets.arithmetic import arithmetic
from workbench.datasets.chains import chains
from workbench.datasets.environments import Environment, environment
from workbench.datasets.hub import hub
from workbench.datasets.reasoning_gym import reasoning_gym
from workbench.datasets.rows import from_file, from_rows
from workbench.pools import Pool, PoolExhausted, Problem, Stream

__all__ = [
    "FAMILIES",
    "Environment",
    "Pool",
    "PoolExhausted",
    "Problem",
    "Stream",
    "arithmetic",
    "chains",
    "environment",
    "from_file",
    "from_rows",
    "hub",
    "reasoning_gym",
]

# What a manifest may name as the family of a pool: the functions whose arguments are plain data.
FAMILIES = {
    function.__name__: function for function in (arithmetic, chains, reasoning_gym, hub, from_file)
}
