"""Checkpoints of the TRL trainer: a resumed run is the uninterrupted one, to the last bit."""

import gc
import pkgutil
import weakref

import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl
from peft import LoraConfig
from small_methods import small
from trl_cases import dataset, logged, same, trained, trainer, weights

from workbench import methods
from workbench.adapters import FILE, Driver
from workbench.rules import allocators
from workbench.rules.allocators import DynamicSampling, Knapsack
from workbench.rules.replay import Buffer, CorrectResponses
from workbench.rules.selectors import Scheduler

pytestmark = pytest.mark.slow

# Methods with memory in every slot that may have one.
REMEMBERING = {
    "known": methods.Method(
        "known",
        allocator=Knapsack(4),
        replay=CorrectResponses("direct"),
        selector=Scheduler(50, learning_rate=0.01),
    ),
    "window": methods.Method(
        "window",
        allocator=DynamicSampling(4),
        replay=Buffer(2),
        selector=Scheduler(scope="buffer", warmup=0),
    ),
}
# Methods with a course are refused, since TRL samples by itself.
WITHOUT_COURSE = [
    name
    for name in (*methods.PAPERS, *methods.MORE_PAPERS)
    if getattr(methods, name)().course is None
]
EVERY = {"dapo": small("dapo"), "aero": small("aero"), **REMEMBERING}


def interrupted(out, method, *, steps=4, at=2, **settings):
    """An uninterrupted run, and one that resumes after step `at`."""
    settings = {
        "data": dataset(16),
        "max_steps": steps,
        "save_strategy": "steps",
        "save_steps": at,
        **settings,
    }
    whole = trained(trainer(out, method, **settings))
    resumed = trainer(out, method, **settings)
    resumed.train(resume_from_checkpoint=str(out / f"checkpoint-{at}"))
    return whole, resumed


def measured(one, after=0):
    """The rows of the log after a step, without what depends on the clock."""
    rows = [row for row in one.state.log_history if row["step"] > after and "loss" in row]
    return [
        {name: row[name] for name in row if "time" not in name and "seconds" not in name}
        for row in rows
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    whole, resumed = interrupted(tmp_path, EVERY[name])
    assert same(weights(whole), weights(resumed))
    assert whole.driver.round == resumed.driver.round == 4
    # Among them the metrics of the slots, from the first row on.
    assert measured(whole, after=2) == measured(resumed, after=2)
    assert len(measured(resumed, after=2)) == 2


def test_a_resume_with_adapters(tmp_path):
    options = {"peft_config": LoraConfig(r=4, target_modules=r".*_proj")}
    whole, resumed = interrupted(tmp_path, small("dapo"), options=options, steps=2, at=1)
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_amid_a_round_has_what_was_learnt_and_changes_nothing(tmp_path):
    settings = {
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "max_steps": 3,
        "data": dataset(16),
    }
    method = REMEMBERING["known"]
    plain = trained(trainer(tmp_path / "plain", method, **settings))
    saving = {"save_strategy": "steps", "save_steps": 3}
    saved = trained(trainer(tmp_path / "saved", method, **settings, **saving))
    assert same(weights(plain), weights(saved))
    learnt = Driver(method, saved.args.seed)
    learnt.load(tmp_path / "saved" / "checkpoint-3", step=3)
    assert (learnt.round, learnt.empty_rounds) == (2, 0)
    # The second round is amid its updates, and its rollouts are known all the same.
    assert seen(learnt.method) == 32
    assert seen(saved.method) == 16


def seen(method):
    """Rollouts that an allocator's success rates have seen."""
    return sum(len(outcomes) for outcomes in method.allocator.rates.learner.recent.values())


def test_the_count_of_empty_rounds_goes_on(tmp_path):
    def always(completions, **_):
        return [1.0] * len(completions)

    settings = {"reward": always, "max_completion_length": 4}
    _, resumed = interrupted(tmp_path, small("grpo"), **settings)
    assert resumed.driver.empty_rounds == 4
    assert resumed.driver.round == 4


def test_rewards_that_were_graded_once_stay_graded_in_a_resumed_run(tmp_path):
    def graded_at_first(completions, trainer_state, **_):
        grades = [0.5, 0.25] if trainer_state.global_step == 0 else [0.0, 1.0]
        return [grades[i % 2] for i in range(len(completions))]

    settings = {"reward": graded_at_first, "max_completion_length": 4}
    whole, resumed = interrupted(tmp_path, small("grpo"), **settings)
    assert not whole.verdict.known and not resumed.verdict.known


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    settings = {"data": dataset(16), "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    method = small("ar3po")
    trained(trainer(tmp_path, method, **settings))
    folder = tmp_path / "checkpoint-1"

    def resume(method):
        trainer(tmp_path, method, **settings).train(resume_from_checkpoint=str(folder))

    with pytest.raises(ValueError, match=r"method\.replay: None, "):
        resume(method.but(replay=None))
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint"):
        resume(None)
    (folder / FILE).unlink()
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint"):
        resume(method)
    resume(None)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    settings = {"data": dataset(16), "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trained(trainer(tmp_path, small("ar3po"), **settings))
    path = tmp_path / "checkpoint-1" / FILE
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="damaged"):
        Driver(small("ar3po"), 42).load(path.parent)


def test_logged_rows_are_those_of_their_round(tmp_path):
    """What slots measure is logged with the round it was measured in, not with the next one."""
    one = trained(trainer(tmp_path, small("ar3po"), max_steps=3))
    stored = logged(one, "workbench/replay_stored")[0]
    assert len(stored) == 3
    counts = logged(one, "workbench/correct", "workbench/rollouts")
    correct = [share * size for share, size in zip(*counts)]
    assert stored == pytest.approx([sum(correct[: i + 1]) for i in range(3)])


@pytest.mark.parametrize("at", [3, 4])
def test_a_resume_in_a_later_epoch_goes_on_with_its_problems(at, tmp_path):
    """Three rounds an epoch. TRL alone would begin the order of the first epoch again."""
    settings = {"data": dataset(12), "max_completion_length": 4, "save_total_limit": 2}
    whole, resumed = interrupted(tmp_path, small("grpo"), steps=6, at=at, **settings)
    assert same(weights(whole), weights(resumed))
    assert measured(whole, after=at) == measured(resumed, after=at)


def test_a_round_knows_how_many_epochs_are_behind_it(tmp_path):
    seen = []

    class Watching(allocators.Uniform):
        def allocate(self, problems, context):
            seen.append(context.epoch)
            yield from super().allocate(problems, context)

    method = small("grpo").but(allocator=Watching(4))
    # Of 13 problems an epoch of rounds of four leaves one over.
    settings = {"data": dataset(13), "max_completion_length": 4, "max_steps": 4}
    trained(trainer(tmp_path, method, **settings))
    assert seen == [0, 0, 0, 1]


@pytest.mark.long
@pytest.mark.parametrize("name", WITHOUT_COURSE)
def test_every_method_resumes_in_the_second_and_in_the_third_epoch(name, tmp_path):
    """Two rounds an epoch, with problems left over, and checkpoints amid and between epochs."""
    settings = {
        "data": dataset(10),
        "max_completion_length": 12,
        "max_steps": 7,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    # TRL does not have the losses of these.
    own_loss = name in ("gmpo", "clip_cov", "kl_cov")
    options = {"objective_from": "args"} if own_loss else {}
    whole = trained(trainer(tmp_path, small(name), options=options, **settings))
    for at in (3, 5):
        resumed = trainer(tmp_path, small(name), options=options, **settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
        assert same(weights(whole), weights(resumed))
        assert measured(whole, after=at) == measured(resumed, after=at)


def test_what_was_learnt_is_written_before_trl_s_own_files(tmp_path, monkeypatch):
    """A run that is killed while TRL saves leaves nothing that TRL alone could go on from."""

    def killed(self, model, trial):
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.Trainer._save_checkpoint", killed)
    settings = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, small("grpo"), **settings).train()
    assert [path.name for path in (tmp_path / "checkpoint-1").iterdir()] == [FILE]
    with pytest.raises(ValueError, match="seed"):
        Driver(small("grpo"), seed=1).load(tmp_path / "checkpoint-1")
    with pytest.raises(ValueError, match="step"):
        Driver(small("grpo"), seed=42).load(tmp_path / "checkpoint-1", step=2)


# An interrupt, and then the same trainer again

STOPPING = {
    "sampling": ("transformers.GenerationMixin.generate", 1),
    "judging": ("trl.GRPOTrainer._calculate_rewards", 1),
    "choosing": ("workbench.adapters.Driver.play", 1),
    "dealing": ("workbench.trl.GRPOTrainer.micro_batches", 1),
    "forward": ("trl.GRPOTrainer._compute_loss", 2),
    "backward": ("accelerate.Accelerator.backward", 1),
    "between": ("trl.GRPOTrainer.training_step", 1),
    "learning": ("workbench.adapters.Driver.learn", 1),
    "stepping": ("torch.optim.AdamW.step", 1),
    "saving": ("transformers.Trainer.save_model", 1),
    "saving the state": ("transformers.Trainer._save_rng_state", 1),
}


def stop_in_round(patch, begun, place, number, is_done):
    """Have a function raise at a call of it in a round, before its work or after it.

    `begun` is a trainer with a method, or a list with an entry for each round that has begun.
    """
    path, call = STOPPING[place]
    owner, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    function = getattr(owner, name)
    calls = []

    def raising(*args, **options):
        if (len(begun) if isinstance(begun, list) else begun.driver.round) < number:
            return function(*args, **options)
        calls.append(name)
        if len(calls) != call:
            return function(*args, **options)
        if is_done:
            function(*args, **options)
        raise KeyboardInterrupt

    patch.setattr(owner, name, raising)


OFTEN = {
    "data": dataset(16),
    "max_completion_length": 12,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,  # the steps of a round
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
}
METHOD = REMEMBERING["known"].but(allocator=allocators.Uniform(4))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained(trainer(tmp_path_factory.mktemp("whole"), METHOD, **OFTEN))


@pytest.mark.parametrize(
    "place, is_done",
    [*((place, True) for place in STOPPING), ("stepping", False), ("saving", False)],
)
@pytest.mark.long
def test_the_same_trainer_goes_on_after_an_interrupt(
    place, is_done, undisturbed, tmp_path, monkeypatch
):
    one = trainer(tmp_path, METHOD, **OFTEN)
    with monkeypatch.context() as patch:
        stop_in_round(patch, one, place, 2, is_done)
        with pytest.raises(KeyboardInterrupt):
            one.train()
    assert 2 <= one.state.global_step <= 4
    assert all(weight.grad is None for weight in one.model.parameters())
    one.train(resume_from_checkpoint=True)
    assert same(weights(one), weights(undisturbed))
    assert measured(one, after=4) == measured(undisturbed, after=4)


@pytest.mark.parametrize("method", [None, METHOD])
@pytest.mark.parametrize("place", ["sampling", "forward", "between", "stepping"])
@pytest.mark.long
def test_training_begins_anew_with_a_round_of_its_own(place, method, tmp_path, monkeypatch):
    one = trainer(tmp_path, method, **OFTEN)
    sample = trl.GRPOTrainer._generate_and_score_completions
    begun = []

    def sampling(self, inputs):
        begun.append((self.state.global_step, self._step))
        return sample(self, inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", sampling)
    with monkeypatch.context() as patch:
        stop_in_round(patch, begun, place, 2, False)
        with pytest.raises(KeyboardInterrupt):
            one.train()
    begun.clear()
    one.train()
    assert begun == [(0, 0), (2, 4), (4, 8)]


def test_an_interrupted_trainer_is_let_go(tmp_path, monkeypatch):
    one = trainer(tmp_path, METHOD, **OFTEN)
    with monkeypatch.context() as patch:
        stop_in_round(patch, [], "backward", 0, True)
        with pytest.raises(KeyboardInterrupt) as stopped:
            one.train()
    held = [weakref.ref(each) for each in (one, one.model, one.optimizer)]
    del one
    gc.collect()
    assert stopped.value.__traceback__ is not None
    assert not [each() for each in held if each() is not None]


def test_without_a_complete_checkpoint_a_resume_says_what_to_do(tmp_path):
    one = trainer(tmp_path, METHOD, **OFTEN)
    (tmp_path / "checkpoint-7").mkdir()
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint=.*complete") as error:
        one.train(resume_from_checkpoint=True)
    assert "\n" not in str(error.value)
