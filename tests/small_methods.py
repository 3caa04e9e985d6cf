"""Every method that has a name, at a small size, for the tests that go over all of them.

A new paper appears here by itself. It has a line below only where four rollouts of a problem, or
its defaults if it has no argument n, are not small enough.
"""

import dataclasses
import inspect

from workbench import methods
from workbench.rules import allocators, selectors

NAMES = (*methods.PAPERS, *methods.MORE_PAPERS)

SIZES = {
    "pods": lambda: methods.pods(8, 4),
    "ar3po": lambda: methods.ar3po(2, 2),
    "aero": lambda: methods.aero(explore=4, total=8, n_max=8),
    "cbs": lambda: methods.cbs(n=4, p=50),
    "reinforce_ada": lambda: methods.reinforce_ada(stages=2, k=4, keep=4),
    "speed": lambda: methods.speed(4, 2, groups=2),
    "pilot_commit": lambda: methods.pilot_commit(2, 2, groups=2),
    "hora": lambda: methods.hora(4, probe=2),
    "mopps": lambda: methods.mopps(4).adjust("curriculum", factor=2),
    "mapp": lambda: methods.mapp(4, factor=2),
    "cppo": lambda: methods.cppo(8),
    "pass_at_k": lambda: methods.pass_at_k(4, k=2),
    "pkpo": lambda: methods.pkpo(4, k=2),
    "lilo": lambda: methods.lilo(4, factor=2),
    "rlep": lambda: methods.rlep(4, each=1),
    "experience_replay": lambda: methods.experience_replay(4, size=32),
    "exgrpo": lambda: methods.exgrpo(4).adjust("replay", start=0.0),
    "prefix_rl": lambda: methods.prefix_rl(8),
    "clip_cov": lambda: methods.clip_cov(4).but(
        objective=dataclasses.replace(methods.clip_cov().objective, covariance_range=(0.0, 5.0))
    ),
}

# What a trainer that samples by itself carries of DUET.
SIZES["by_signal"] = lambda: methods.grpo().but(
    allocator=allocators.BySignal(8, low=2),
    selector=selectors.InverseCounts(allocator=allocators.BySignal(8, low=2)),
)


def small(name):
    """The method of that name, small."""
    if name in SIZES:
        return SIZES[name]()
    make = methods.entry(name).make
    return make(n=4) if "n" in inspect.signature(make).parameters else make()
