"""An interrupt or an error at any place of a round: everything goes on as if it had not come."""

import gc
import os
import signal
import time
import weakref
from dataclasses import replace
from multiprocessing import forkserver, reduction

import pytest
import torch
import transformers.models.qwen3.modeling_qwen3 as qwen3
from conftest import small_lab
from jupyter_client.manager import start_new_kernel

import workbench as wb
from workbench.labs import shipped
from workbench.policies.transformers import TransformersPolicy
from workbench.records import Writer
from workbench.run import OpenRun
from workbench.training import TrainingRound
from workbench.trials import engine
from workbench.trials.cases import Case

SMALL = dict(problems_per_round=2, evaluate_every=2, checkpoint_every=2)

# Where a round may be stopped, in its order.
PLACES = {
    "sampling": (TransformersPolicy, "_draw_batch"),
    "verifying": (wb.verifiers.Math, "score"),
    "selecting": (wb.selectors.MaxVariance, "select"),
    "forward": (TransformersPolicy, "_logits"),
    "backward": (torch.Tensor, "backward"),
    "stepping": (torch.optim.AdamW, "step"),
    "recording": (Writer, "round"),
    "checkpointing": (Writer, "checkpoint"),
    "evaluating": (OpenRun, "evaluate"),
}


def stop_at(monkeypatch, place, in_round, is_done, error=KeyboardInterrupt):
    """Have a function raise in a round, once, before its work or after it."""
    owner, name = PLACES[place]
    function = getattr(owner, name)
    numbers = []
    play = TrainingRound.run

    def counted(this):
        numbers.append(this.number)
        return play(this)

    def raising(*args, **options):
        if numbers[-1:] != [in_round]:
            return function(*args, **options)
        numbers.append(None)
        if is_done:
            function(*args, **options)
        raise error("stopped here")

    monkeypatch.setattr(TrainingRound, "run", counted)
    monkeypatch.setattr(owner, name, raising)


def weights(run):
    return torch.cat([each.detach().ravel() for each in run.policy.parameters()])


def a_run(out, **options):
    method = wb.methods.pods(n=4, m=2).but(objective=wb.objectives.Objective(kl=0.01))
    return wb.Run(small_lab(), method, out=out, **SMALL, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 5 rounds that nothing has stopped: its weights and accuracies."""
    run = a_run(tmp_path_factory.mktemp("whole") / "run")
    list(run.rounds(5, progress=False))
    return weights(run), run.record


def held_by(run):
    """Weak references to what must not outlive an interrupt."""
    training = run._work.training
    held = [training.policy.model, training.optimizer, training.method.selector]
    return [weakref.ref(each) for each in [*held, *training.policy.parameters()]]


@pytest.mark.long
@pytest.mark.parametrize("is_done, again", [(False, "same"), (True, "new")])
@pytest.mark.parametrize("place", PLACES)
def test_stopped_anywhere_a_run_goes_on_bit_for_bit(
    place, again, is_done, whole, tmp_path, monkeypatch
):
    run = a_run(tmp_path / "run")
    in_round = 4 if place in ("checkpointing", "evaluating") else 3
    with monkeypatch.context() as patch:
        stop_at(patch, place, in_round, is_done)
        with pytest.raises(KeyboardInterrupt) as stopped:
            for _ in run.rounds(5, progress=False):
                held = held_by(run)
    assert stopped.value.__traceback__ is not None
    assert not [each() for each in held if each() is not None], "it lives on behind the traceback"
    if again == "new":
        del run
        run = a_run(tmp_path / "run")
    list(run.rounds(5, progress=False))
    expected, record = whole
    assert torch.equal(weights(run), expected)
    assert run.record.accuracy()["accuracy"].equals(record.accuracy()["accuracy"])
    assert run.record.rounds["reward"].equals(record.rounds["reward"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "place, named", [("forward", "micro_tokens from 8192 to 4096"), ("sampling", "rows from 1024")]
)
def test_where_memory_runs_out_one_sentence_says_what_to_lower(
    place, named, whole, tmp_path, monkeypatch
):
    run = a_run(tmp_path / "run")

    def full(text):
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    with monkeypatch.context() as patch:
        stop_at(patch, place, 3, False, error=full)
        with pytest.raises(torch.OutOfMemoryError, match=named) as stopped:
            for _ in run.rounds(5, progress=False):
                held = held_by(run)
    assert "Tried to allocate 2.00 GiB" in str(stopped.value) and "\n" not in str(stopped.value)
    assert not [each() for each in held if each() is not None]
    list(run.rounds(5, progress=False))
    assert torch.equal(weights(run), whole[0])


@pytest.mark.slow
def test_a_model_that_nobody_uses_is_gone_before_the_next_one_is_loaded(tmp_path, monkeypatch):
    """Adapters refer to one another in circles, which Python takes apart at times of its own."""
    problems, lora = wb.problems.arithmetic(8), {"r": 4, "target_modules": "all-linear"}
    sampling = wb.policies.Sampling(max_new_tokens=8)
    lab = wb.labs.transformers(
        str(shipped("models/tiny")), problems, lora=lora, device="cpu", sampling=sampling
    )
    made = []

    def make_policy():
        made.append([each() for each in held if each() is not None])
        return lab.make_policy()

    held = []
    watched = replace(lab, make_policy=make_policy)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    gc.disable()
    try:
        for name in "ab":
            run = wb.Run(watched, wb.methods.grpo(n=2), out=tmp_path / name, problems_per_round=2)
            for _ in run.rounds(1, progress=False):
                held = held_by(run)
    finally:
        gc.enable()
    assert made == [[], []]


@pytest.mark.slow
def test_layers_that_are_computed_again_are_let_go_too(tmp_path, monkeypatch):
    lab = wb.labs.transformers(
        str(shipped("models/tiny")),
        wb.problems.arithmetic(8),
        device="cpu",
        gradient_checkpointing=True,
        sampling=wb.policies.Sampling(max_new_tokens=12),
    )
    run = wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path / "run", problems_per_round=4)
    compute = qwen3.Qwen3MLP.forward

    def forward(module, states):
        # Within a backward pass.
        if len(held) and torch._C._current_graph_task_id() != -1:
            held.append(weakref.ref(states))
            raise KeyboardInterrupt
        return compute(module, states)

    held = []
    monkeypatch.setattr(qwen3.Qwen3MLP, "forward", forward)
    with pytest.raises(KeyboardInterrupt) as stopped:
        for _ in run.rounds(9, progress=False):
            held = held_by(run)
    assert stopped.value.__traceback__ is not None
    assert not [each() for each in held if each() is not None]


@pytest.mark.slow
def test_an_interrupt_while_a_process_starts_leaves_everything_in_order(tmp_path, monkeypatch):
    values = {"method": "grpo", "rounds": 1, "seed": 0}
    case = Case("run", values, tmp_path / "run", tmp_path / "logs")
    workers = engine.Processes()
    send = reduction.sendfds

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        return send(*args)

    # A shell that starts programs in the background has them pass interrupts over.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(reduction, "sendfds", interrupted)
        workers.start(case)
    signal.signal(signal.SIGINT, before)
    server = forkserver._forkserver._forkserver_pid
    workers.stop()
    [(_, process)] = workers.running.values()
    assert not process.is_alive(), "it is known, and was ended"
    workers = engine.Processes()
    workers.start(case)
    assert forkserver._forkserver._forkserver_pid == server
    workers.stop()


# In a notebook

BEGINNING = """
import weakref
from dataclasses import replace

import numpy as np
import torch
import workbench as wb

LAB = wb.labs.tiny(pool=8, base="clean", levels=(1, 2), held_out=4, samples=1)
ARGUMENTS = dict(problems_per_round=2, evaluate_every=2, checkpoint_every=2)

class Mine(wb.selectors.Random):
    def select(self, rollouts, context):
        stop("selecting", context)
        return super().select(rollouts, context)

class Judge:
    def score(self, responses, answers):
        stop("verifying", responses)
        return LAB.verifier.score(responses, answers)

def stop(place, *held):
    global stopping
    if place == stopping and refs:
        stopping = None
        raise KeyboardInterrupt if place == "verifying" else RuntimeError("stopped here")

step = torch.optim.AdamW.step
def stepping(optimizer, *rest):
    stop("stepping")
    return step(optimizer, *rest)
torch.optim.AdamW.step = stepping

def alive():
    return [type(each()) for each in refs if each() is not None]

def digest(run):
    return float(sum(each.detach().double().sum() for each in run.policy.parameters()))

stopping, refs = None, []
"""

TRAINING = """
lab = replace(LAB, verifier=Judge())
run = wb.Run(lab, wb.methods.pods(4, 2).but(selector=Mine(2)), out=out, **ARGUMENTS)
for row in run.rounds(4, progress=False):
    training = run._work.training
    held = [training.policy.model, training.optimizer, *training.policy.parameters()]
    refs = [weakref.ref(each) for each in held]
    gradients = [each.grad for each in training.policy.parameters() if each.grad is not None]
    refs += map(weakref.ref, gradients)
    del training, held, gradients
"""


class Notebook:
    """A kernel in which cells are run."""

    def __init__(self, manager, client):
        self.manager = manager
        self.client = client

    def run(self, code, error=None):
        """What a cell prints; the name of the error that it must end with, if any."""
        printed, raised = [], None

        def keep(message):
            nonlocal raised
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            if message["msg_type"] == "error":
                raised = content["ename"], "\n".join(content["traceback"])

        self.client.execute_interactive(code, output_hook=keep, timeout=120)
        assert (raised and raised[0]) == error, raised
        return "".join(printed).strip()


@pytest.fixture
def notebook(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield Notebook(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.long
def test_nothing_stays_behind_the_traceback_that_a_notebook_keeps(notebook, tmp_path):
    notebook.run(BEGINNING)
    notebook.run("out = 'whole'" + TRAINING)
    whole = notebook.run("print(digest(run))")
    places = {"selecting": "RuntimeError", "verifying": "KeyboardInterrupt"}
    for place, error in {**places, "stepping": "RuntimeError"}.items():
        # The same cell again; the next place begins a new run with a new object.
        cell = f"out = {place!r}{TRAINING}"
        notebook.run(f"refs = []; stopping = {place!r}")
        notebook.run(cell, error)
        assert notebook.run("print(len(refs) > 10, alive())") == "True []", place
        notebook.run(cell)
        assert notebook.run("print(digest(run))") == whole
