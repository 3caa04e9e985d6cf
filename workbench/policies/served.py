"""Models that a server computes, by OpenAI's protocol of completions over HTTP.

A `ServedPolicy` is a model that only the server has. It samples and is never trained, which is what
a study of allocation, of success rates or of a verifier needs. A `ServedEngine` samples for a
policy that is trained here: vLLM's own server, as `trl vllm-serve` starts it, is handed the weights
before every request by the client of TRL.

A server may stop at any time. A request that gets no answer is made again, a bounded number of
times and within a deadline. When that is over the run stops with a `ServerError`, and goes on from
its last checkpoint as soon as there is a server again.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from itertools import count
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import torch
from transformers import PreTrainedModel

from workbench.policies import Plan, Sampling, checks
from workbench.policies.decoding import LOGPROBS_OF_MARGINS, NO_CHANCE, PromptBatch, Samples
from workbench.policies.merged import merged_weights
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.bounds import Count, CountOrZero, Positive, check_arguments
from workbench.utils.validation import brief, cause_of, instance_of
from workbench.verifiers.boxes import opened_thought

# What a server answers while it is too busy, is starting, or has lost what computes for it. It
# would refuse anything else again.
WORTH_ANOTHER_TRY = (408, 429, 500, 502, 503, 504)
LONGEST_PAUSE = 30.0  # seconds between two tries
LOOK_UP = 0.1  # seconds after which one who waits for an answer looks whether it was given up
LARGEST_ANSWER = 2**26  # bytes
TRIES_OF_NONSENSE = 3  # for an answer that is not of the protocol, such as a proxy's
OF_TEMPLATE = 2**16  # tokens that a server may put around a prompt, at most
NEWER_LIMIT = "max_completion_tokens"
ABOVE_ONE = 1e-3  # how far rounding may bring the logarithm of a probability above 0
LARGEST_SEED = 2**31  # the seeds that every server takes are below
# Second and later responses to prompts, from which on they are not all the same by chance.
REPEATS = 16


class ServerError(OSError):
    """A server gave no answer, or refused what it was asked.

    Attributes
    ----------
    said : str
        What it said where it refused.
    """

    said = ""


class Nonsense(ValueError):
    """An answer that is not of the protocol."""


@dataclass(frozen=True)
class Server:
    """A server of OpenAI's protocol.

    Parameters
    ----------
    url : str
        Such as "http://localhost:8000". Without a path it is that of "/v1".
    key : str, optional
        Sent as a bearer token. It goes into no record.
    retries : int
        How often a request that got no answer is made again, after pauses of 1, 2, 4 and at most 30
        seconds.
    deadline : float
        Seconds that a request may take with all its tries.
    at_once : int
        Requests that wait for an answer at the same time.

    Raises
    ------
    ValueError
        For arguments that cannot work. Nothing is sent before the first request.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    retries: CountOrZero = 8
    deadline: Positive = 600.0
    at_once: Count = 64

    def __post_init__(self) -> None:
        check_arguments(self)
        parts = urlsplit(self.url) if isinstance(self.url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"url={brief(self.url)}: the address of a server is needed, such as "
                "'http://localhost:8000'"
            )

    @property
    def address(self) -> str:
        """What the path of every request begins with."""
        has_path = urlsplit(self.url).path.strip("/")
        return self.url.rstrip("/") + ("" if has_path else "/v1")

    def ask(
        self,
        path: str,
        body: Any = None,
        given_up: Event | None = None,
        waits: bool = True,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """The server's answer to one request, to POST where there is a body.

        Parameters
        ----------
        path : str
            Such as "/completions".
        body : JSON data, optional
        given_up : Event, optional
            Once it is set, nobody waits for the answer, and no further try is made.
        waits : bool
            Whether it is asked again where the connection fails, by a server that may have been
            started anew.
        read : function
            What is taken from the answer. It raises `Nonsense` for one that is not of the protocol,
            and the server is then asked again a few times.

        Raises
        ------
        ServerError
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"})
        if self.key is not None:
            # A server that redirects to another one does not pass the key on.
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        given_up = given_up or Event()
        started = time.monotonic()
        until = started + self.deadline
        for tries in count(1):
            most = self.retries
            try:
                status, text = _within(until, given_up, lambda: _response(request, until))
                if status is None:
                    return _taken(text, read)
                said = text[:1000].decode(errors="replace")
                reason = f"status {status}: {cause_of(ValueError(' '.join(said.split())))}"
                if status not in WORTH_ANOTHER_TRY:
                    error = ServerError(f"{self.url}: it refused the request ({reason})")
                    error.said = said
                    raise error
            except ServerError:
                raise
            except Nonsense as error:
                reason = f"what it answered is not of the protocol: {error}"
                most = min(self.retries, TRIES_OF_NONSENSE - 1)
            except (OSError, HTTPException, ValueError) as error:
                reason = cause_of(error)
                if not waits:
                    given_up.set()
            pause = min(2.0 ** (tries - 1), LONGEST_PAUSE)
            seconds = time.monotonic() - started
            if tries > most or seconds + pause >= self.deadline or given_up.wait(pause):
                break
        raise ServerError(
            f"{self.url}: no answer in {seconds:.0f} seconds and {tries} tries ({reason}); a run "
            "goes on from its last checkpoint once the server is there again"
        )

    def choices(
        self,
        path: str,
        bodies: Sequence[Any],
        read: Callable[[Any, Any, Any], Any],
        waits: bool = True,
    ) -> list[Any]:
        """What is read from the one response to each of many requests, in their order.

        Parameters
        ----------
        path, waits
            See `ask`.
        bodies : list of JSON data
        read : function
            read(body, choice, usage) returns what is taken from a response and from what the server
            says it has used. Whatever it raises for an entry that is missing, or of another type,
            means that the answer is not of the protocol.

        Raises
        ------
        ServerError
            Also for an answer that is not one of the protocol, and for a response that was cut off
            by anything but its own end and the longest length.
        """

        def choice_of(body: Any, answer: Any) -> Any:
            [choice] = answer["choices"]
            # Anything else is no whole response, and would be rewarded as a short one.
            reason = choice["finish_reason"]
            if reason not in ("stop", "length"):
                raise ServerError(f"{self.url}: a response was ended by {brief(reason)}")
            return read(body, choice, answer["usage"])

        given_up = Event()
        workers = ThreadPoolExecutor(self.at_once)
        try:
            futures = [
                workers.submit(self.ask, path, body, given_up, waits, partial(choice_of, body))
                for body in bodies
            ]
            # In the order of their ends: the first failure is the cause of those that follow.
            for each in as_completed(futures):
                each.result()
            return [each.result() for each in futures]
        finally:
            # After an error, or an interrupt, nobody waits for the others.
            given_up.set()
            workers.shutdown(wait=False, cancel_futures=True)


def _within(until: float, given_up: Event, work: Callable[[], Any]) -> Any:
    """What work() returns or raises, or TimeoutError at a time of `time.monotonic`.

    A server may send a byte now and then, which no timeout of a socket notices. So the work is done
    in a thread that nobody waits for longer.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # raised again below
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not given_up.is_set() and (left := until - time.monotonic()) > 0:
        if wait([done], timeout=min(left, LOOK_UP)).done:
            return done.result()
    raise TimeoutError("given up" if given_up.is_set() else "timed out")


def _response(request: Request, until: float) -> tuple[int | None, bytes]:
    """What a server sends: the status of a refusal, else None, and its text."""
    status = None
    try:
        answer = urlopen(request, timeout=max(until - time.monotonic(), 1e-3))
    except HTTPError as error:
        answer, status = error, error.code
    with answer:
        text = bytearray()
        while part := answer.read1(2**16):
            text += part
            if len(text) > LARGEST_ANSWER:
                raise Nonsense(f"it has more than {LARGEST_ANSWER:,} bytes")
            if time.monotonic() > until:
                raise TimeoutError("timed out")
    return status, bytes(text)


def _taken(text: bytes, read: Callable[[Any], Any]) -> Any:
    """What is read from the text of an answer; Nonsense where that cannot be."""
    try:
        return read(json.loads(text))
    except Nonsense:
        raise
    # Whatever is missing, or of another type than that of the protocol.
    except (LookupError, TypeError, ValueError, RecursionError, AttributeError) as error:
        shown = brief(text[:1000].decode(errors="replace"))
        raise Nonsense(f"{type(error).__name__}, {cause_of(error)}, in {shown}") from None


def _count(name: str, usage: Any, most: int, least: int = 0) -> int:
    """A number of tokens that a server says it has used."""
    number = usage[name]
    if type(number) is not int or not least <= number <= most:
        raise Nonsense(f"usage.{name} is {brief(number)}; {least} to {most} are possible")
    return number


def _text(name: str, text: Any) -> str:
    """A text that can be written to disk."""
    if not isinstance(text, str):
        raise Nonsense(f"{name} is {brief(text)}, and no text")
    text.encode()
    return text


def _request_body(
    model: str, sampling: Sampling, seed: int, most: int, limit: str = "max_tokens"
) -> dict[str, Any]:
    """What a request says of how its response is sampled; `limit` is the server's word."""
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        limit: most,
        "seed": seed % LARGEST_SEED,
    }
    # Not all servers know it, and it is no part of OpenAI's protocol.
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body


@dataclass
class ServedPolicy:
    """A model that only a server has: it samples, and nothing of it is trained.

    A run on it plays every round but for the update, so that `steps` is 0 and `trained` says which
    rollouts an update would have had a gradient of. Token ids, log-probabilities and entropies are
    unknown, and FLOPs are 0. The number of tokens is what the server says.

    Parameters
    ----------
    server : Server
    name : str
        Of the model, as the server has it.
    template : str
        A pattern with {prompt} in it, whose text the server goes on from; or "chat" for a message
        to which the server applies the model's chat template.

    Notes
    -----
    Whether a seed gives the same response again is up to the server. A text ends before a stop
    string. A `top_k` of 0 is not in the request, since not every server knows the setting. A
    server may then take another number from the model's own generation config, as vLLM does by
    its documentation: start that one by `vllm serve --generation-config vllm`.
    """

    server: Server
    name: str
    template: str = "chat"

    samples_apart = False
    limit = "max_tokens"  # what the server calls the length of the longest response
    layout = "padded"
    model = None
    parameter_count = 0
    device = torch.device("cpu")

    def __post_init__(self) -> None:
        checks.check_template(self.template)

    def generate(
        self,
        prompts: Sequence[Any],
        counts: Any,
        sampling: Sampling,
        seed: int | Sequence[int],
        plan: Plan | None = None,
    ) -> Rollouts:
        """See `Policy.generate`. Every response is a request of its own, with a seed of its own."""
        if plan is not None:
            raise ValueError("course: a server returns whole responses; take course=None")
        batch = PromptBatch.of(prompts, counts, seed)
        is_chat = self.template == "chat"
        bodies = []
        for i, its_seed in zip(batch.owner, batch.seed_of_each):
            body = _request_body(self.name, sampling, its_seed, sampling.max_new_tokens, self.limit)
            text = batch.problems[i].prompt
            if is_chat:
                body["messages"] = [{"role": "user", "content": text}]
            else:
                body["prompt"] = self.template.format(prompt=text)
            bodies.append(body)

        def read(body: Any, choice: Any, usage: Any) -> tuple[str, int, int, bool]:
            # A model that only thought has no content.
            text = choice["message"]["content"] if is_chat else choice["text"]
            text = "" if is_chat and text is None else text
            # The prompt may have opened a thought, which then belongs to the text.
            begun = "" if is_chat else opened_thought(body["prompt"])
            text = _text("its content" if is_chat else "its text", text)
            # Some servers fill in zeros where they have not counted.
            least = 1 if text else 0
            length = _count("completion_tokens", usage, sampling.max_new_tokens, least)
            asked = _count("prompt_tokens", usage, len(json.dumps(body)) + OF_TEMPLATE)
            return begun + text, length, asked, choice["finish_reason"] == "length"

        path = "/chat/completions" if is_chat else "/completions"
        try:
            answers = self.server.choices(path, bodies, read)
        except ServerError as error:
            # OpenAI's own servers know the older word no more, and most others not the newer one.
            if self.limit == NEWER_LIMIT or NEWER_LIMIT not in error.said:
                raise
            self.limit = NEWER_LIMIT
            return self.generate(prompts, counts, sampling, seed)
        texts, lengths, of_prompts, truncated = zip(*answers) if answers else ((),) * 4
        asked = len(set(batch.owner.tolist()))
        are_same = len(set(zip(batch.owner.tolist(), texts))) == asked
        if sampling.temperature > 0 and are_same and len(texts) - asked >= REPEATS:
            warnings.warn(
                f"temperature: all responses of {self.name} to a prompt are the same, as where a "
                "server leaves the temperature, or the seed of each request, unread",
                stacklevel=2,
            )
        return Rollouts(
            **batch.columns,
            prompt=Ragged.of([np.zeros(n) for n in of_prompts], np.int32),
            response=Ragged.of([np.zeros(n) for n in lengths], np.int32),
            text=np.array(texts, dtype=object),
            truncated=np.array(truncated, dtype=bool),
        )

    def check_prompts(self, problems: Iterable[Problem]) -> None:
        """Nothing is known of the server's tokenizer."""

    def comparable(self, sampling: Sampling) -> bool:
        """There are no log-probabilities to compare."""
        return False

    def frozen(self) -> ServedPolicy:
        """Itself, since nothing changes it."""
        return self

    def parameters(self) -> list[torch.nn.Parameter]:
        """One without entries that needs no gradient: optimizers refuse an empty list."""
        return [torch.nn.Parameter(torch.zeros(0), requires_grad=False)]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Nothing: the weights are the server's."""
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Nothing to set."""

    def _unknown(self, *_: Any, **__: Any) -> Any:
        """What needs the weights."""
        raise ServerError(f"{self.name}: only the server has its weights")

    rescored = logprobs = prompt_states = save = _unknown


class ServedEngine:
    """vLLM's own server as the engine of a `TransformersPolicy`, which hands over its weights.

    It is started by `trl vllm-serve --model MODEL`, on another GPU than the trainer's. The client
    of TRL hands over all weights, an adapter merged into them, by NCCL.

    Parameters
    ----------
    server : Server
    client : optional
        A `trl.generation.vllm_client.VLLMClient`, or an object with its methods. Default: one for
        this server.

    Attributes
    ----------
    max_length : int
        Tokens that prompt and response may take together.
    """

    def __init__(self, server: Server, client: Any = None) -> None:
        self.server = server
        self.name, self.max_length = server.ask("/models", read=_first_model)
        if client is None:
            from trl.generation.vllm_client import VLLMClient

            base = server.url.rstrip("/").removesuffix("/v1")
            client = VLLMClient(base, connection_timeout=server.deadline)
        self.client = client
        self._joined = False

    def update(self, model: Any) -> None:
        """Hand over all weights of the model as they are now."""
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        if not self._joined:
            self.client.init_communicator(next(model.parameters()).device)
            self._joined = True
        if isinstance(model, PreTrainedModel):
            self.client.update_model_params(model)
        else:
            with self.client.weight_update():
                for name, weight in merged_weights(model, model.get_base_model().dtype):
                    self.client.update_named_param(name, weight)
        # Keys and values of prompts that it keeps come from the old weights.
        self.client.reset_prefix_cache()

    def respond(
        self,
        prompts: Ragged,
        seeds: list[int],
        sampling: Sampling,
        end_ids: list[int],
        never: list[int],
        room: np.ndarray,
        margins: bool = False,
    ) -> tuple[Samples, Ragged | None]:
        """See `workbench.policies.vllm.Engine.respond`."""
        # Everything is named that the model's own generation config might change unasked.
        further = {
            "repetition_penalty": 1.0,
            "min_p": 0.0,
            "top_k": 0,
            "stop_token_ids": end_ids,
            "logit_bias": {str(token): NO_CHANCE for token in never},
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            # The two most likely tokens by their numbers, since two tokens may have one text.
            "return_tokens_as_token_ids": True,
            "logprobs": LOGPROBS_OF_MARGINS if margins else 0,
        }
        texts = [each.tolist() for each in prompts]
        bodies = [
            {**further, "prompt": ids, **_request_body(self.name, sampling, seed, int(most))}
            for ids, seed, most in zip(texts, seeds, room)
        ]

        def read(body: Any, choice: Any, _: Any) -> tuple[Any, ...]:
            ids, logprobs = choice["token_ids"], choice["logprobs"]
            of_tokens = [float(each) for each in logprobs["token_logprobs"]]
            known = all(type(each) is int and 0 <= each < self.vocabulary for each in ids)
            if not known or not 1 <= len(ids) <= body["max_tokens"]:
                raise Nonsense(
                    f"token_ids is {brief(ids)}; 1 to {body['max_tokens']} numbers below "
                    f"{self.vocabulary} are possible"
                )
            if len(of_tokens) != len(ids) or not all(-math.inf < x < ABOVE_ONE for x in of_tokens):
                raise Nonsense(
                    f"token_logprobs is {brief(of_tokens)}, for {len(ids)} tokens; a logarithm of "
                    "a probability is needed for each"
                )
            rows = [_margin(likely) for likely in logprobs["top_logprobs"]] if margins else []
            return ids, of_tokens, choice["finish_reason"] == "length", rows

        # A server that was started anew would answer with the weights that it began with.
        answers = self.server.choices("/completions", bodies, read, waits=False)
        tokens, of_tokens, truncated, gaps = zip(*answers)
        samples = Samples.by_engine(
            Ragged.of(tokens, np.int32),
            Ragged.of(of_tokens, np.float32),
            np.array(truncated, dtype=bool),
        )
        return samples, Ragged.of(gaps, np.float32) if margins else None

    def rest(self) -> None:
        """Nothing: the server has its own GPU."""

    def comparable(self, sampling: Sampling) -> bool:
        """Whether log-probabilities are of the whole tempered distribution, as the trainer's are.

        The server takes them over the tokens that top_p and top_k leave.
        """
        return sampling.top_p == 1 and not sampling.top_k


def _first_model(answer: Any) -> tuple[str, int]:
    """Name of the model that a server has, and the tokens that prompt and response may have."""
    model = answer["data"][0]
    return _text("id", model["id"]), _count("max_model_len", model, LARGEST_SEED)


def _margin(likely: Mapping[str, float]) -> float:
    """The gap between the two largest probabilities, by the log-probabilities of likely tokens."""
    second, first = sorted(likely.values())[-2:]
    return math.exp(first) - math.exp(second)


def check_server(server: Any, config: Any) -> None:
    """Raise unless a server can sample for a model that is trained here.

    `config` is the `TransformersConfig` of the lab.
    """
    instance_of("server", server, Server, "Server('http://localhost:8000')")
    checks.check_temperature(config.sampling)
    if config.engine != "transformers":
        raise ValueError(f"engine={config.engine!r}: the server samples; leave it out")
    checks.check_hand_over(config.lora or {}, merged=True)
    checks.check_packages("trl", "vllm")
