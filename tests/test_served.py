"""Rollouts from a server, of OpenAI's protocol and of vLLM's, that is killed and comes back.

The server is real and in a process of its own; `completions_server.py` has it.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from urllib.request import Request, urlopen

import numpy as np
import pytest
from completions_server import Server as Local
from completions_server import serve
from conftest import go, heed_interrupts, same_record, small_lab, started, tiny_policy
from contract import LORA, PROMPTS, SAMPLING, Contract, responses, shaken
from safetensors.torch import save_file

import workbench as wb
from workbench.labs import shipped
from workbench.policies.served import ServedEngine, ServedPolicy, Server, ServerError
from workbench.problems import arithmetic

QUICK = {"retries": 1, "deadline": 60.0}
SMALL = {"problems_per_round": 4, "evaluate_every": 2, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def local():
    """A server in a thread of this process, which shows what it was asked."""
    server = Local()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def url_of(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


def lab_at(url, **options):
    return wb.labs.served(
        "tiny",
        arithmetic(32, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        server=Server(url, **{**QUICK, **options}),
        template="{prompt}",
        sampling=wb.policies.Sampling(max_new_tokens=24),
        samples=1,
    )


@contextlib.contextmanager
def at(port=0, last=None):
    """The process of a server, and its address."""
    with started(serve, port, last) as (process, told):
        yield process, f"http://127.0.0.1:{told.recv()}"
        process.kill()


# A model that only the server has


def test_it_draws_what_the_model_draws(local):
    served = ServedPolicy(Server(url_of(local)), "tiny", "{prompt}")
    table = served.generate(PROMPTS, [2, 0, 1, 0, 0, 3], SAMPLING, 7)
    assert table.problem.tolist() == ["0", "0", "2", "5", "5", "5"]
    assert table.draw.tolist() == [0, 1, 0, 0, 1, 2]
    own = local.policy.generate(PROMPTS, [2, 0, 1, 0, 0, 3], SAMPLING, 8)
    assert (table.prompt.lengths == own.prompt.lengths).all()
    assert ((table.lengths >= 1) & (table.lengths <= 32)).all()
    assert len(set(table.text)) > 3
    again = served.generate(PROMPTS[2:3], [1], SAMPLING, [wb.utils.seeding.derive(7, 2)])
    assert again.text[0] == table.text[2]


def test_a_chat_is_asked_in_messages_and_a_key_is_sent(local):
    served = ServedPolicy(Server(url_of(local) + "/v1/", key="secret"), "tiny")
    narrow = replace(SAMPLING, top_k=1, stop=("=",))
    table = served.generate(PROMPTS[:1], [1], narrow, 0)
    path, headers, body = local.asked[-1]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
    assert body["messages"] == [{"role": "user", "content": PROMPTS[0]}]
    assert body["top_k"] == 1 and body["stop"] == ["="] and table.text[0].endswith("=")
    assert "secret" not in repr(served.server)


@pytest.mark.long
def test_a_run_plays_every_round_without_an_update(local, tmp_path):
    rows = go(wb.Run(lab_at(url_of(local)), wb.methods.knapsack(4), out=tmp_path, **SMALL), 3)
    record = wb.load(tmp_path)
    assert [row["rollouts"] for row in rows] == [16, 16, 16]
    assert [row["steps"] for row in rows] == [0, 0, 0]
    assert record.rollouts()["trained"].any() and record.rounds["tokens_trained"].sum() == 0
    assert set(record.evals["round"]) == {0, 2, 3}
    assert np.isnan(record.rounds["loss"]).all()
    manifest = json.dumps(record.manifest)
    assert "served:tiny" in manifest and "127.0.0.1" not in manifest


@pytest.mark.long
def test_a_server_that_is_killed_in_a_round_stops_the_run_and_nothing_is_lost(tmp_path):
    method = wb.methods.knapsack(4)
    with at() as (_, url):
        go(wb.Run(lab_at(url), method, out=tmp_path / "whole", **SMALL), 4)
    # 8 requests of the evaluation before round 1, and 16 a round: in the third one.
    with at(last=8 + 16 + 16 + 8 + 5) as (process, url):
        run = wb.Run(lab_at(url), method, out=tmp_path / "killed", **SMALL)
        seen = []
        with pytest.raises(ServerError, match=rf"^{url}: no answer in .* tries"):
            for row in run.rounds(4, progress=False):
                seen.append(row["round"])
        process.join(10)
        assert process.exitcode == -9 and seen == [1, 2]
    assert len(wb.load(tmp_path / "killed").rounds) == 2
    # Another process, at another address.
    with at() as (_, url):
        resumed = wb.Run.resume(tmp_path / "killed", lab=lab_at(url))
        assert [row["round"] for row in go(resumed, 4)] == [3, 4]
    same_record(wb.load(tmp_path / "killed"), wb.load(tmp_path / "whole"))


@pytest.mark.long
def test_a_server_that_comes_back_in_time_is_waited_for(tmp_path):
    method = wb.methods.grpo(4)
    with at() as (_, url):
        go(wb.Run(lab_at(url), method, out=tmp_path / "whole", **SMALL), 2)
    with contextlib.ExitStack() as stack:
        first, url = stack.enter_context(at(last=8 + 16 + 3))
        port = int(url.rpartition(":")[2])

        def start_again():
            first.join()
            stack.enter_context(at(port))

        restart = threading.Thread(target=start_again)
        restart.start()
        go(wb.Run(lab_at(url, retries=8), method, out=tmp_path / "waited", **SMALL), 2)
        restart.join()
        assert first.exitcode == -9
    same_record(wb.load(tmp_path / "waited"), wb.load(tmp_path / "whole"))


@pytest.mark.slow
def test_a_busy_server_is_asked_again(local, monkeypatch):
    asked = len(local.asked)
    monkeypatch.setattr(local, "busy", asked + 2)
    served = ServedPolicy(Server(url_of(local), **{**QUICK, "retries": 2}), "tiny", "{prompt}")
    assert len(served.generate(PROMPTS[:1], [1], SAMPLING, 0)) == 1
    assert len(local.asked) == asked + 3


def test_what_is_refused_is_not_asked_again(local):
    asked = len(local.asked)
    with pytest.raises(ServerError, match=r"refused .*status 404: .*gpt.* does not exist"):
        ServedPolicy(Server(url_of(local)), "gpt").generate(PROMPTS[:1], [1], SAMPLING, 0)
    assert len(local.asked) == asked + 1


def test_a_response_that_a_filter_ended_is_no_whole_response(local, monkeypatch):
    monkeypatch.setattr(local, "ended", "content_filter")
    with pytest.raises(ServerError, match="ended by 'content_filter'"):
        ServedPolicy(Server(url_of(local)), "tiny").generate(PROMPTS[:1], [1], SAMPLING, 0)


@pytest.mark.slow
def test_a_server_that_says_nothing_is_left_at_the_deadline(local):
    served = ServedPolicy(Server(url_of(local), deadline=1.0), "tiny")
    started_at = time.monotonic()
    with local.lock, pytest.raises(ServerError, match="timed out"):
        served.generate(PROMPTS[:2], [1, 1], SAMPLING, 0)
    assert time.monotonic() - started_at < 10


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Server("localhost:8000"), "url="),
        (lambda: Server("file:///etc/passwd"), "url="),
        (lambda: Server(8000), "url="),
        (lambda: Server("http://here", retries=-1), "retries=-1"),
        (lambda: Server("http://here", deadline=0), "deadline=0"),
        (lambda: wb.labs.served("m", arithmetic(4), server="http://here"), "server="),
        (lambda: wb.labs.transformers("m/m", arithmetic(4), server="http://here"), "server="),
        (
            lambda: wb.labs.served("m", arithmetic(4), server=Server("http://here"), template="x"),
            "templ",
        ),
        (lambda: ServedPolicy(Server("http://here"), "m", template="x"), "templ"),
    ],
)
def test_what_cannot_work_is_named_before_anything_is_sent(make, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        make()


def test_a_method_that_reads_the_weights_is_refused():
    method = wb.methods.cbs()
    with pytest.raises(ValueError, match="the lab served:tiny"):
        wb.Run(lab_at("http://127.0.0.1:9"), method)


# vLLM's server for a model that is trained here


class ByFile:
    """What TRL's client does, by files in place of NCCL, which only an NVIDIA GPU has."""

    def __init__(self, url, folder):
        self.url = url
        self.path = folder / "weights.safetensors"
        self.named = {}
        self.resets = 0

    def init_communicator(self, device):
        assert device.type == "cpu"

    @contextlib.contextmanager
    def weight_update(self):
        self.named = {}
        yield
        self.send()

    def update_named_param(self, name, weight):
        self.named[name] = weight.clone().contiguous()

    def update_model_params(self, model):
        self.named = {name: weight.data for name, weight in model.named_parameters()}
        self.send()

    def send(self):
        save_file(self.named, self.path)
        self.tell()

    def tell(self):
        body = json.dumps({"path": str(self.path)}).encode()
        assert urlopen(Request(f"{self.url}/weights", body)).status == 200

    def reset_prefix_cache(self):
        self.resets += 1


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "adapter"], scope="class")
@pytest.mark.long
class TestServedEngine(Contract):
    apart = True
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self, local, lora, tmp_path_factory):
        client = ByFile(url_of(local), tmp_path_factory.mktemp("client"))
        engine = ServedEngine(Server(url_of(local)), client)
        policy = tiny_policy(lora=lora, engine=engine)
        return policy if lora is None else shaken(policy)

    def test_the_cache_is_dropped_with_every_hand_over(self, policy):
        before = policy.engine.client.resets
        first = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
        second = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
        assert policy.engine.client.resets == before + 2
        assert responses(first) == responses(second)


@pytest.mark.slow
def test_a_run_that_is_trained_here_and_sampled_there(local, tmp_path):
    def make_policy():
        engine = ServedEngine(Server(url_of(local)), ByFile(url_of(local), tmp_path))
        return tiny_policy(engine=engine)

    lab = replace(small_lab(held_out=0), make_policy=make_policy, learning_rate=1e-3)
    run = wb.Run(lab, wb.methods.grpo(4), out=tmp_path / "run", problems_per_round=4)
    rows = go(run, 2)
    assert all(row["steps"] == 1 and row["sampler_gap"] < 1e-3 for row in rows)


@pytest.mark.slow
def test_a_server_that_has_lost_the_weights_is_not_asked_again(tmp_path):
    """Started again it would have those that it began with."""
    with at(last=2) as (_, url):
        engine = ServedEngine(Server(url), ByFile(url, tmp_path))
        policy = tiny_policy(engine=engine)
        with pytest.raises(ServerError, match="and 1 tries"):
            policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)


@pytest.mark.skipif(bool(find_spec("vllm")), reason="vLLM is installed")
def test_the_packages_of_the_hand_over_are_named():
    with pytest.raises(ImportError, match="vllm"):
        wb.labs.transformers(
            str(shipped("models/tiny")), arithmetic(4), server=Server("http://127.0.0.1:9")
        )


# Servers that answer nonsense, slowly, or too much


@contextlib.contextmanager
def rude(send):
    """The address of a server that calls send(connection, request text) for every request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = []

        def answer(connection):
            with connection, contextlib.suppress(OSError):
                request = b""
                # Head and body may come in parts; the body is one line of JSON.
                while not request.endswith(b"}" if request.startswith(b"POST") else b"\r\n\r\n"):
                    request += connection.recv(2**16)
                asked.append(request)
                send(connection, asked[-1])

        def listen():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked


def sends(content, status="200 OK"):
    """A server's way to answer every request with the same text or JSON data."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return lambda connection, _: connection.sendall(head.encode() + text)


def chat(text="7", usage=None, **choice):
    usage = {"prompt_tokens": 5, "completion_tokens": 2} if usage is None else usage
    choice = {"finish_reason": "stop", "message": {"content": text}, **choice}
    return {"choices": [choice], "usage": usage}


COUNTS = {"prompt_tokens": 5, "completion_tokens": 2}
NONSENSE = {
    "no json": b"<html>Bad gateway</html>",
    "not utf-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "a list": [1],
    "no choices": {"error": "none"},
    "two choices": {**chat(), "choices": chat()["choices"] * 2},
    "no reason": {**chat(), "choices": [{"message": {"content": "7"}}]},
    "no message": chat(message=None),
    "a list as content": chat([{"type": "text", "text": "7"}]),
    "a number as content": chat(0),
    "half a letter": chat("\ud800"),
    "no usage": {**chat(), "usage": None},
    "usage of nothing": chat(usage={"prompt_tokens": 5}),
    "no count": chat(usage={**COUNTS, "completion_tokens": None}),
    "a text as count": chat(usage={**COUNTS, "completion_tokens": "2"}),
    "half a token": chat(usage={**COUNTS, "completion_tokens": 1.5}),
    "less than no tokens": chat(usage={**COUNTS, "prompt_tokens": -1}),
    "more than were asked for": chat(usage={**COUNTS, "completion_tokens": 33}),
    "no prompt has as many": chat(usage={**COUNTS, "prompt_tokens": 300_000_000}),
    "true": chat(usage={**COUNTS, "completion_tokens": True}),
    "no tokens of a text": chat(usage={**COUNTS, "completion_tokens": 0}),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_one_sentence(kind):
    with rude(sends(NONSENSE[kind])) as (url, asked):
        served = ServedPolicy(Server(url, retries=0, deadline=20), "tiny")
        with pytest.raises(ServerError, match=f"^{url}: .* not of the protocol: ") as error:
            served.generate(PROMPTS[:1], [1], SAMPLING, 0)
    assert "\n" not in str(error.value) and len(str(error.value)) < 800 and len(asked) == 1


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_server_that_leaves_the_temperature_unread_is_named(temperature):
    with rude(sends(chat())) as (url, _), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        served = ServedPolicy(Server(url, retries=0, deadline=20), "tiny")
        sampling = replace(SAMPLING, temperature=temperature)
        served.generate(PROMPTS[:2], [3, 4], sampling, 0)
        assert not found  # so few may well be the same
        served.generate(PROMPTS[:4], [8, 0, 1, 12], sampling, 0)
    assert [str(each.message)[:11] for each in found] == ["temperature"] * (temperature > 0)


@pytest.mark.slow
def test_nonsense_in_between_is_overcome():
    def send(connection, _):
        sends(chat("7") if len(asked) > 1 else {})(connection, _)

    with rude(send) as (url, asked):
        table = ServedPolicy(Server(url, deadline=20), "tiny").generate(
            PROMPTS[:1], [1], SAMPLING, 0
        )
    assert table.text.tolist() == ["7"] and table.lengths.tolist() == [2]


def test_the_newer_word_for_the_longest_response_is_used_where_it_is_asked_for():
    def send(connection, request):
        is_new = b'"max_completion_tokens": 32' in request and b'"max_tokens"' not in request
        said = {"error": {"message": "'max_tokens' is unknown. Use 'max_completion_tokens'."}}
        sends(chat())(connection, request) if is_new else sends(said, "400 no")(connection, request)

    with rude(send) as (url, asked):
        served = ServedPolicy(Server(url, retries=0, deadline=20), "tiny")
        assert served.generate(PROMPTS[:1], [1], SAMPLING, 0).text.tolist() == ["7"]
        served.generate(PROMPTS[:1], [1], SAMPLING, 0)
    assert len(asked) == 3


def drip(head):
    """A server's way to send a byte now and then, after what it begins with."""

    def send(connection, _):
        connection.sendall(head)
        while True:
            time.sleep(0.2)
            connection.sendall(b"X")

    return send


def pour(connection, _):
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[")
    while True:
        connection.sendall(b"1," * 2**15)


@pytest.mark.parametrize(
    "send, said",
    [
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"), "timed out"),
        (drip(b"HTTP/1.1 200 OK\r\nX-Slow: "), "timed out"),
        (drip(b"HTTP/1.1 503 no\r\nContent-Length: 1000\r\n\r\n"), "timed out"),
        (pour, "more than 1,000,000 bytes"),
    ],
    ids=["body", "head", "error", "endless"],
)
@pytest.mark.slow
def test_a_deadline_is_that_of_the_whole_answer(send, said, monkeypatch):
    monkeypatch.setattr("workbench.policies.served.LARGEST_ANSWER", 1_000_000)
    started_at = time.monotonic()
    with rude(send) as (url, _):
        served = ServedPolicy(Server(url, retries=0, deadline=1.5), "tiny")
        with pytest.raises(ServerError, match=said):
            served.generate(PROMPTS[:2], [1, 1], SAMPLING, 0)
    assert time.monotonic() - started_at < 8


WAITS = """
import sys
from workbench.policies import Sampling
from workbench.policies.served import ServedPolicy, Server
print("asks", flush=True)
ServedPolicy(Server(sys.argv[1]), "tiny").generate(["1+1="], [3], Sampling(), 0)
"""


@pytest.mark.long
def test_an_interrupt_ends_a_process_at_once():
    with rude(lambda connection, _: time.sleep(60)) as (url, asked):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell starts what stands in its background without the signal.
            preexec_fn=heed_interrupts,
        )
        assert process.stdout.readline() == b"asks\n"
        while len(asked) < 3:
            time.sleep(0.05)
        sent_at = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent_at < 10 and b"KeyboardInterrupt" in errors


def completion(**choice):
    """What vLLM's server answers to a request for one response, with some entries changed."""
    logprobs = {"token_logprobs": [-0.5, -0.1], "top_logprobs": None}
    usual = {"finish_reason": "stop", "token_ids": [5, 1], "logprobs": logprobs}
    return {"choices": [{**usual, **choice}], "usage": COUNTS}


def with_logprobs(*values):
    return completion(logprobs={"token_logprobs": list(values), "top_logprobs": None})


NONSENSE_OF_AN_ENGINE = {
    "no tokens": completion(token_ids=None),
    "none at all": completion(token_ids=[]),
    "beyond the vocabulary": completion(token_ids=[5, 66]),
    "below it": completion(token_ids=[-1, 1]),
    "no number": completion(token_ids=[5, "1"]),
    "too many": completion(token_ids=[5] * 33),
    "fewer log-probabilities": with_logprobs(-0.5),
    "above one": with_logprobs(-0.5, 50.0),
    "no logarithm": with_logprobs(-0.5, None),
    "not a number": with_logprobs(-0.5, float("nan")),
    "no log-probabilities": completion(logprobs=None),
}


@pytest.mark.parametrize("kind", NONSENSE_OF_AN_ENGINE)
def test_nonsense_of_an_engine_is_one_sentence(kind, tmp_path):
    def send(connection, request):
        models = {"data": [{"id": "tiny", "max_model_len": 128}]}
        content = models if b"/models" in request else NONSENSE_OF_AN_ENGINE[kind]
        sends(content)(connection, request)

    with rude(send) as (url, _):
        client = SimpleNamespace(
            init_communicator=lambda device: None,
            update_model_params=lambda model: None,
            reset_prefix_cache=lambda: None,
        )
        engine = ServedEngine(Server(url, retries=0, deadline=20), client)
        with pytest.raises(ServerError, match="not of the protocol: ") as error:
            tiny_policy(engine=engine).generate(PROMPTS[:1], [1], SAMPLING, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "models", [{}, {"data": []}, {"data": [{"id": "m"}]}, {"data": [{"id": 1, "max_model_len": 9}]}]
)
def test_nonsense_about_the_model_is_one_sentence(models):
    with rude(sends(models)) as (url, _), pytest.raises(ServerError, match="not of the protocol"):
        ServedEngine(Server(url, retries=0, deadline=20), SimpleNamespace())
