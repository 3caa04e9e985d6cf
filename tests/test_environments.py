"""Environments of the package verifiers: their tasks as problems, their functions as the verifier.

Every test runs twice: with the package, where it is installed, and with a stand-in that has what we
call of it. That the stand-in is like the package is seen where both run.

    pip install -e ".[environments]"
"""

import asyncio
import copy
import importlib
import importlib.metadata
import inspect
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Generic, TypeVar

import pytest
from conftest import go

import workbench as wb
from workbench.labs import shipped

# An environment as somebody would write it, with a dotted name for what each test changes.
SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str = ""


class SumTask(vf.Task[SumData, vf.State]):
    @vf.reward(weight=1.0)
    async def right(self, task, trace):
        if "raise" in trace.last_reply:
            raise RuntimeError("a defect of the environment")
        return float(trace.last_reply.endswith(task.answer))

    @vf.reward(weight=0.25)
    async def asked(self, trace):
        return float(trace.messages[-2].content.endswith("="))


class SumsConfig(vf.TasksetConfig):
    size: int = 8
    system: str = ""


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        system = self.config.system or None
        for number in [*range(self.config.size), 0]:
            data = SumData(prompt=f"{number}+1=", answer=str(number + 1), system_prompt=system)
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
"""


# The stand-in: what the package has of the names that we call, in its simplest form


class Data:
    """Stands in for a pydantic model: fields with defaults, and the two methods that we call."""

    def __init__(self, **values):
        unknown = values.keys() - type(self).model_fields.keys()
        if unknown:
            raise ValueError(f"{sorted(unknown)}: no such field")
        for name, default in type(self).model_fields.items():
            setattr(self, name, values.get(name, copy.copy(default)))

    def __init_subclass__(cls):
        fields = {}
        for kind in reversed(cls.__mro__):
            names = inspect.get_annotations(kind)
            fields |= {name: vars(kind)[name] for name in names if name in vars(kind)}
        cls.model_fields = fields

    def model_dump(self, mode, exclude, exclude_defaults):
        assert mode == "json" and exclude_defaults
        values = {name: getattr(self, name) for name in type(self).model_fields}
        defaults = type(self).model_fields
        return {
            name: value
            for name, value in values.items()
            if name not in exclude and value != defaults[name]
        }


class TaskData(Data):
    idx: int | None = None
    prompt: object = None
    system_prompt: str | None = None
    image: str | None = None

    @property
    def prompt_text(self):
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0].content


class TaskConfig(Data):
    judges: list = []  # noqa: RUF012


class TasksetConfig(Data):
    id: str = ""
    task: TaskConfig = TaskConfig()


DataT = TypeVar("DataT")
StateT = TypeVar("StateT")


class Task(Generic[DataT, StateT]):
    NEEDS_CONTAINER = False

    def __init__(self, data, config):
        self.data = data
        self.config = config

    async def setup(self, trace, runtime): ...

    async def finalize(self, trace, runtime): ...

    @classmethod
    def toolsets(cls, config):
        return []

    def hooks(self, kind):
        assert kind == "reward"
        members = [getattr(self, name) for name in vars(type(self))]
        return [member for member in members if hasattr(member, "weight")]

    async def score(self, trace):
        available = {"task": self.data, "trace": trace}
        for function in self.hooks("reward"):
            names = inspect.signature(function).parameters
            value = await function(**{name: available[name] for name in names})
            trace.reward += value * function.weight


class Taskset(Generic[DataT, StateT]):
    bounded = True

    def __init__(self, config):
        self.config = config
        self.bounded = not getattr(type(self), "INFINITE", False)
        self.most = None

    @classmethod
    def toolsets(cls, config):
        return []

    def take(self, most):
        self.most = most
        return self

    def __iter__(self):
        for number, task in enumerate(self.load()):
            if number == self.most:
                return
            task.data.idx = number
            yield task


class Trace(SimpleNamespace):
    reward = 0.0

    @property
    def messages(self):
        return [node.message for node in self.nodes]

    @property
    def last_reply(self):
        return self.nodes[-1].message.content


class SingleAgentEnv: ...


class SeveralAgents: ...


def reward(weight):
    def mark(function):
        function.weight = weight
        return function

    return mark


def taskset_class(name):
    module = importlib.import_module(name.replace("-", "_"))
    kinds = [getattr(module, each) for each in module.__all__]
    (kind,) = [each for each in kinds if issubclass(each, Taskset)]
    return kind


def message(role):
    return lambda content: SimpleNamespace(role=role, content=content)


def stand_in():
    """The modules of the stand-in, by name."""
    v1 = ModuleType("verifiers.v1")
    simple = ("TraceTask", "AgentInfo", "AgentConfig", "VersionInfo", "MessageNode", "State")
    vars(v1).update({name: type(name, (SimpleNamespace,), {}) for name in simple})
    vars(v1).update(
        TaskData=TaskData,
        TasksetConfig=TasksetConfig,
        Task=Task,
        Taskset=Taskset,
        Trace=Trace,
        SingleAgentEnv=SingleAgentEnv,
        SystemMessage=message("system"),
        UserMessage=message("user"),
        AssistantMessage=message("assistant"),
        reward=reward,
        taskset_config_type=lambda name: sys.modules[taskset_class(name).__module__].SumsConfig,
        environment_class=lambda name: (
            SeveralAgents
            if hasattr(sys.modules[name.replace("-", "_")], "Several")
            else SingleAgentEnv
        ),
        load_taskset=lambda config: taskset_class(config.id)(config),
    )
    state = ModuleType("verifiers.v1.state")
    state.state_cls = lambda kind: v1.State
    package = ModuleType("verifiers")
    package.__version__ = "0.4.0"
    package.__spec__ = ModuleSpec("verifiers", None)
    package.v1 = v1
    v1.state = state
    return {"verifiers": package, "verifiers.v1": v1, "verifiers.v1.state": state}


@pytest.fixture(params=["verifiers", "stand-in"])
def write(request, tmp_path, monkeypatch):
    """A function that writes an environment to a module, with changes of its text."""
    if request.param == "verifiers":
        pytest.importorskip(
            "verifiers", reason="verifiers is not installed: pip install -e '.[environments]'"
        )
    else:
        for name, module in stand_in().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(tmp_path)

    def to_module(name="own_sums", **changes):
        text = SUMS
        for old, new in changes.items():
            assert PLACES[old] in text
            text = text.replace(PLACES[old], new)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield to_module
    sys.modules.pop("own_sums", None)


# What the tests change of `SUMS`.
PLACES = {
    "task": "class SumTask(vf.Task[SumData, vf.State]):\n",
    "taskset": "class Sums(vf.Taskset[SumTask, SumsConfig]):\n",
    "prompt": 'prompt=f"{number}+1="',
    "right": "async def right(self, task, trace):",
    "asked": 'return float(trace.messages[-2].content.endswith("="))',
}


def test_tasks_become_problems_and_their_functions_the_verifier(write):
    sums = wb.problems.environment(write())
    assert len(sums.problems) == 8, "the ninth task is the first one again"
    assert sums.held_out is None
    by_prompt = {each.prompt: each.answer for each in sums.problems}
    assert sorted(by_prompt) == [f"{number}+1=" for number in range(8)]

    answers = [by_prompt["1+1="], by_prompt["1+1="], by_prompt["2+1="], by_prompt["2+1="]]
    scores = sums.verifier.score(["it is 2", "it is 3", "it is 3", "raise"], answers)
    assert scores.reward.tolist() == [1.25, 0.25, 1.25, 0.0]
    assert scores.status.tolist() == ["ok", "wrong", "ok", "crash"]


def test_held_out_tasks_are_not_trained_on(write):
    name = write()
    sums = wb.problems.environment(name, n=3, held_out=4, seed=1)
    assert (len(sums.problems), len(sums.held_out)) == (3, 4)
    assert not {each.id for each in sums.problems} & {each.id for each in sums.held_out}
    again = wb.problems.environment(name, n=3, held_out=4, seed=1)
    assert again.problems.digest == sums.problems.digest
    other = wb.problems.environment(name, n=3, held_out=4, seed=2)
    assert other.problems.digest != sums.problems.digest


def test_options_and_a_system_prompt(write):
    sums = wb.problems.environment(write(), size=2, system="Add.")
    assert sorted(each.prompt for each in sums.problems) == ["Add.\n\n0+1=", "Add.\n\n1+1="]
    (problem,) = [each for each in sums.problems if "1+1" in each.prompt]
    assert sums.verifier.score(["2"], [problem.answer]).reward.tolist() == [1.25]


def test_the_reward_from_which_a_response_is_right(write):
    sums = wb.problems.environment(write(), right_from=0.25)
    assert sums.verifier.score(["no idea"], [sums.problems[0].answer]).status[0] == "ok"


@pytest.mark.slow
def test_a_run_trains_on_an_environment_and_goes_on(write, tmp_path):
    sums = wb.problems.environment(write(), held_out=2)
    lab = wb.labs.transformers(
        shipped("models/early-small"),
        sums.problems,
        sums.held_out,
        verifier=sums.verifier,
        sampling=wb.policies.Sampling(max_new_tokens=12),
        device="cpu",
        samples=1,
    )
    run = wb.Run(lab, wb.methods.grpo(2), problems_per_round=3, out=tmp_path / "run")
    go(run, 1)
    earned = set(run.record.rollouts()["reward"])
    assert earned <= {0.0, 0.25, 1.25}
    with pytest.raises(ValueError, match="made by code of the caller's own"):
        wb.Run.resume(tmp_path / "run")
    assert len(go(wb.Run.resume(tmp_path / "run", lab=lab), 2)) == 1


def test_a_reward_without_bound_is_no_crash(write):
    """A run stops at it and names it; only a function that raises is a crash."""
    sums = wb.problems.environment(write(asked='return float("inf")'))
    assert sums.verifier.score(["2"], [sums.problems[0].answer]).reward.tolist() == [float("inf")]


def test_scoring_works_where_an_event_loop_is_running(write):
    """As in a notebook."""
    sums = wb.problems.environment(write())

    async def cell():
        return sums.verifier.score(["nothing"], [sums.problems[0].answer])

    assert asyncio.run(cell()).reward.tolist() == [0.25]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": f"{PLACES['task']}    NEEDS_CONTAINER = True\n\n"}, "runs in a container"),
        (
            {
                "task": f"{PLACES['task']}    async def setup(self, trace, runtime):\n"
                "        pass\n\n"
            },
            "prepares a machine",
        ),
        (
            {
                "task": f"{PLACES['task']}    @classmethod\n    def toolsets(cls, config):\n"
                "        return ['a tool']\n\n"
            },
            "gives the model tools",
        ),
        (
            {"right": "async def right(self, task, trace, runtime):"},
            "looks at the machine that a rollout ran on; only environments of a single turn",
        ),
        (
            {"prompt": "prompt=[vf.UserMessage(content='1+1='), vf.AssistantMessage(content='2')]"},
            "begins with more than one text of the user",
        ),
        ({"prompt": "prompt=' '"}, "a task without a prompt"),
        ({"taskset": f"{PLACES['taskset']}    INFINITE = True\n\n"}, "has no end; say how many"),
    ],
)
def test_environments_of_more_than_one_reply_are_refused(write, changes, words):
    with pytest.raises(ValueError, match=f"environment 'own_sums'.*{words}"):
        wb.problems.environment(write(**changes))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sise": 3}, "sise: no argument of environment 'own_sums'; .*did you mean 'size'"),
        ({"n": 0}, "n=0: a whole number"),
        ({"n": 9}, "n=9, .*environment 'own_sums' has 8 different tasks"),
        ({"held_out": 8}, "held_out=8: .* at least one has to be left"),
        ({"right_from": 0}, "right_from=0"),
    ],
)
def test_wrong_arguments_are_named(write, options, words):
    with pytest.raises(ValueError, match=words):
        wb.problems.environment(write(), **options)


def test_a_set_without_end_is_taken_from(write):
    name = write(taskset=f"{PLACES['taskset']}    INFINITE = True\n\n")
    sums = wb.problems.environment(name, n=3, held_out=2)
    assert (len(sums.problems), len(sums.held_out)) == (3, 2)


def test_problems_of_another_environment_are_refused(write):
    sums = wb.problems.environment(write())
    with pytest.raises(ValueError, match=r"answers holds '2', which is no task of this environ"):
        sums.verifier.score(["2"], ["2"])


def test_an_environment_that_is_not_installed_is_named(write):
    write()
    with pytest.raises(ImportError, match="environment 'no-such-sums' is not installed"):
        wb.problems.environment("no-such-sums")


def test_a_missing_package_is_named():
    if find_spec("verifiers"):
        pytest.skip("verifiers is installed")
    with pytest.raises(ImportError, match="missing: verifiers; install with: pip install"):
        wb.problems.environment("any")


def test_the_stand_in_has_what_the_package_has():
    """Every name of the stand-in is one of the package, and a function takes the same arguments."""
    vf = pytest.importorskip(
        "verifiers.v1", reason="verifiers is not installed: pip install -e '.[environments]'"
    )
    for name in vars(stand_in()["verifiers.v1"]):
        if not name.startswith("_"):
            assert hasattr(vf, name), name
    for kind, names in (
        (Task, ("setup", "finalize", "toolsets", "hooks", "score")),
        (Taskset, ("toolsets", "take", "__iter__")),
    ):
        real = getattr(vf, kind.__name__)
        for name in names:
            ours = list(inspect.signature(getattr(kind, name)).parameters)
            theirs = list(inspect.signature(getattr(real, name)).parameters)
            assert len(ours) <= len(theirs), name
    fields = vf.TaskData.model_fields
    assert TaskData.model_fields.keys() <= fields.keys()
    assert TasksetConfig.model_fields.keys() <= vf.TasksetConfig.model_fields.keys()
