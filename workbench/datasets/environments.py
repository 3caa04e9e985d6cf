"""Environments of the package verifiers as problems and their verifier.

An environment of this package is a taskset: tasks, each with a prompt and reward functions. What is
taken here are those of a single turn, whose rewards need nothing but the model's reply. All others
are refused by name: with tools, a container, a judge or another agent a rollout is more than one
response.

The reward functions are code of the environment. They run in this process, without a sandbox and
without a deadline, so an environment has to be one that you trust.
"""

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from workbench.policies.checks import check_packages
from workbench.pools import Pool, Problem, digest_of
from workbench.utils.seeding import generator
from workbench.utils.validation import brief, positive_number, unknown_argument, whole_number
from workbench.verifiers.base import Scores, Verifier


class Environment(NamedTuple):
    """What `environment` returns: all that a lab needs besides a model.

    Attributes
    ----------
    problems : Pool
    held_out : Pool, optional
    verifier : Verifier
    """

    problems: Pool
    held_out: Pool | None
    verifier: Any


def environment(
    name: str,
    n: int | None = None,
    *,
    held_out: int = 0,
    seed: int = 0,
    right_from: float = 1.0,
    **options: Any,
) -> Environment:
    """A single-turn environment of the package verifiers, as problems and their verifier.

        sums = problems.environment("my-environment", held_out=100)
        lab = labs.transformers(model, sums.problems, sums.held_out, verifier=sums.verifier)

    Parameters
    ----------
    name : str
        Of an installed environment, or of a module of your own with a `Taskset` in its `__all__`.
    n : int, optional
        Problems to train on; None for all that are left. A set without end needs a number.
    held_out : int
        Problems to evaluate on, which are not trained on.
    seed : int
        Of the draw that divides the tasks. Tasks that are the same in everything count once.
    right_from : float
        The reward from which on a response counts as right, for allocators and accuracies. What is
        trained on is the reward itself: the weighted sum of the environment's functions.
    options
        Go to the environment's configuration.

    Returns
    -------
    Environment
        With `problems`, `held_out` (None without held-out problems) and `verifier`.

    Raises
    ------
    ImportError
        Without the package or the environment.
    ValueError
        For an environment with tools, a container, a judge or several agents, and for options that
        it does not have.

    Notes
    -----
    Needs the package verifiers, 0.4 or later: pip install 'workbench-rlvr[environments]'. Loading
    an environment runs its code, and so does scoring, in this process. So no manifest can name one,
    and `Run.resume` asks for the lab.
    """
    positive_number("right_from", right_from)
    if n is not None:
        whole_number("n", n, 1)
    whole_number("held_out", held_out, 0)
    check_packages("verifiers")
    taskset = _taskset(name, options)
    if taskset.bounded:
        found = list(taskset)
    elif n is None:
        raise ValueError(f"n=None: environment {name!r} has no end; say how many problems to take")
    else:
        found = list(taskset.take(n + held_out))
    if not found:
        raise ValueError(f"environment {name!r}: it has no tasks")
    _check_single_turn(name, taskset, found[0])

    # Tasks that are the same in everything are one problem.
    tasks: dict[Problem, Any] = {}
    for task in found:
        tasks.setdefault(_problem(name, task), task)
    problems = list(tasks)
    order = generator(seed, "environment").permutation(len(problems))
    shuffled = [problems[place] for place in order]
    if held_out + (n or 1) > len(shuffled):
        raise ValueError(
            f"n={n}, held_out={held_out}: environment {name!r} has {len(shuffled)} different "
            "tasks, and at least one has to be left to train on"
        )
    return Environment(
        Pool(shuffled[held_out:][:n]),
        Pool(shuffled[:held_out]) if held_out else None,
        # A verifier sees answers alone, so it finds the task of a response by the answer.
        TaskRewards({problem.answer: task for problem, task in tasks.items()}, right_from),
    )


def _taskset(name: str, options: Mapping[str, Any]) -> Any:
    """The taskset of that name, with its options."""
    import verifiers.v1 as vf

    if not isinstance(name, str) or not name:
        raise ValueError(f"name={brief(name)}: the name of an installed environment is needed")
    try:
        kind = vf.taskset_config_type(name)
        several = not issubclass(vf.environment_class(name), vf.SingleAgentEnv)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"environment {name!r} is not installed ({error}); install its package, or put the "
            "module with its taskset where Python finds it"
        ) from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"environment {name!r} is no taskset of verifiers 0.4 or later: {error}"
        ) from error
    if several:
        raise ValueError(f"environment {name!r} needs several agents; here a rollout is one reply")
    known = [each for each in kind.model_fields if each != "id"]
    for option in options:
        if option not in known:
            raise unknown_argument(option, f"environment {name!r}", known)
    # Its own checks of the values raise a ValueError that names them.
    return vf.load_taskset(kind(id=name, **options))


def _check_single_turn(name: str, taskset: Any, task: Any) -> None:
    """Raise ValueError for an environment whose rollouts are more than one reply.

    All tasks of a taskset are of one class, so the first one speaks for all.
    """
    import verifiers.v1 as vf

    kind = type(task)
    reason = None
    if type(taskset).toolsets(taskset.config) or kind.toolsets(task.config):
        reason = "gives the model tools"
    elif kind.NEEDS_CONTAINER or task.data.image is not None:
        reason = "runs in a container"
    elif kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize:
        reason = "prepares a machine for each rollout"
    elif task.config.judges:
        reason = "asks another model to judge"
    elif any(map(_needs_runtime, task.hooks("reward"))):
        reason = "looks at the machine that a rollout ran on"
    if reason is not None:
        raise ValueError(
            f"environment {name!r} {reason}; only environments of a single turn can be used, whose "
            "rewards read the reply alone"
        )
    if not task.hooks("reward"):
        raise ValueError(f"environment {name!r} has no reward function")


def _needs_runtime(function: Any) -> bool:
    runtime = inspect.signature(function).parameters.get("runtime")
    return runtime is not None and runtime.default is runtime.empty


def _problem(name: str, task: Any) -> Problem:
    """The task's prompt, with all that the task says as its answer.

    The rewards may read any field of a task, so a changed field is another problem and makes
    another digest of the pool.
    """
    data = task.data
    messages: Sequence[Any] = () if isinstance(data.prompt, str | None) else data.prompt
    for message in messages:
        if message.role != "user" or not isinstance(message.content, str):
            raise ValueError(
                f"environment {name!r} begins with more than one text of the user "
                f"({brief(message)}); here a prompt is one text"
            )
    prompt = data.prompt_text
    if not prompt.strip():
        raise ValueError(f"environment {name!r} has a task without a prompt: {brief(data)}")
    if data.system_prompt is not None:
        prompt = f"{data.system_prompt}\n\n{prompt}"
    # The index is the task's place in the set, and no property of the question.
    content = data.model_dump(mode="json", exclude={"idx"}, exclude_defaults=True)
    answer = json.dumps(content, sort_keys=True)
    return Problem(f"{name}/{digest_of(answer)}", prompt, answer)


# What a response earns


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
        self.tasks = tasks
        self.right_from = right_from

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        """See `Verifier`."""
        for answer in answers:
            if answer not in self.tasks:
                raise ValueError(
                    f"answers holds {brief(answer)}, which is no task of this environment; pass a "
                    "lab the problems and the verifier of one call of problems.environment"
                )
        # In a thread, since a notebook has an event loop of its own running in this one.
        with ThreadPoolExecutor(max_workers=1) as pool:
            rewards = pool.submit(asyncio.run, self._rewards(responses, answers)).result()
        # A weighted sum such as .1 + .9 may miss 1 by rounding.
        status = np.where(rewards >= self.right_from - 1e-9, "ok", "wrong")
        crashed = np.isnan(rewards)
        return Scores(np.where(crashed, 0.0, rewards), np.where(crashed, "crash", status))

    async def _rewards(self, responses: list[str], answers: list[str]) -> np.ndarray:
        tasks = [self.tasks[answer] for answer in answers]
        return np.array(await asyncio.gather(*map(_reward, tasks, responses)), dtype=np.float64)


async def _reward(task: Any, response: str) -> float:
    """The weighted sum of a task's rewards; NaN where one of its functions raised."""
    trace = _trace(task, response)
    try:
        await task.score(trace)
    except Exception:
        # Whatever a function of the environment makes of a response must not end a run. The record
        # counts these, so a function that always raises is seen.
        return float("nan")
    return float(trace.reward)


def _trace(task: Any, response: str) -> Any:
    """The conversation of one turn, as the package would have recorded it."""
    import verifiers
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    messages = [vf.UserMessage(content=task.data.prompt_text)]
    if task.data.system_prompt is not None:
        messages.insert(0, vf.SystemMessage(content=task.data.system_prompt))
    messages.append(vf.AssistantMessage(content=response))
    nodes = [
        vf.MessageNode(
            parent=number - 1 if number else None,
            message=message,
            sampled=number == len(messages) - 1,
        )
        for number, message in enumerate(messages)
    ]
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
