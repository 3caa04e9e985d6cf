"""Rewards of the tasks of an environment, see `workbench.problems.environment`.

The reward functions are code of the environment. They run in this process, without a sandbox and
without a deadline, so an environment has to be one that you trust.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from workbench.utils.validation import positive_number, shown
from workbench.verifiers.base import Scores, Verifier


class TaskRewards(Verifier):
    """Asks each task of an environment of the package verifiers what a response earns.

    A response is `ok` when its reward reaches `right_from`, and `wrong` below. A reward function
    that raises makes it `crash`, with reward 0.

    Parameters
    ----------
    tasks : dict from str to Task
        The tasks by the answers of their problems.
    right_from : float
        The reward, summed over all functions with their weights, from which on a response is right.
    """

    def __init__(self, tasks: Mapping[str, Any], right_from: float = 1.0) -> None:
        super().__init__()
        positive_number("right_from", right_from)
        self.tasks = tasks
        self.right_from = right_from

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        """See `Verifier`."""
        asked = [self._task(answer) for answer in answers]
        # In a thread, since a notebook has an event loop of its own running in this one.
        with ThreadPoolExecutor(max_workers=1) as pool:
            rewards = pool.submit(asyncio.run, _rewards(asked, responses)).result()
        scored = [0.0 if reward is None else reward for reward in rewards]
        return Scores(np.array(scored), np.array([self._status(reward) for reward in rewards]))

    def _task(self, answer: str) -> Any:
        if answer not in self.tasks:
            raise ValueError(
                f"answers holds {shown(answer)}, which is no task of this environment; pass a lab "
                "the problems and the verifier of one call of problems.environment"
            )
        return self.tasks[answer]

    def _status(self, reward: float | None) -> str:
        if reward is None:
            return "crash"
        # A weighted sum such as .1 + .9 may miss 1 by rounding.
        return "ok" if reward >= self.right_from - 1e-9 else "wrong"


async def _rewards(tasks: list[Any], responses: list[str]) -> list[float | None]:
    return await asyncio.gather(*map(_reward, tasks, responses))


async def _reward(task: Any, response: str) -> float | None:
    """The weighted sum of a task's rewards; None where one of its functions raised."""
    trace = _trace(task, response)
    try:
        await task.score(trace)
    except Exception:
        # Whatever a function of the environment makes of a response must not end a run. The record
        # counts these, so a function that always raises is seen.
        return None
    return float(trace.reward)


def _trace(task: Any, response: str) -> Any:
    """The conversation of one turn, as the package would have recorded it."""
    import verifiers
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    messages = []
    if task.data.system_prompt is not None:
        messages.append(vf.SystemMessage(content=task.data.system_prompt))
    messages.append(vf.UserMessage(content=task.data.prompt_text))
    nodes = [
        vf.MessageNode(parent=number - 1 if number else None, message=message)
        for number, message in enumerate(messages)
    ]
    reply = vf.AssistantMessage(content=response)
    nodes.append(vf.MessageNode(parent=len(nodes) - 1, message=reply, sampled=True))
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        # Given, since the package would otherwise ask git for its commit.
        verifiers=vf.VersionInfo(version=verifiers.__version__),
        nodes=nodes,
        state=state_cls(type(task))(),
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )
