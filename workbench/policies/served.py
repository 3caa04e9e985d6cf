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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import count
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import torch
from transformers import PreTrainedModel

from workbench.policies import Plan, Sampling, checks
from workbench.policies.decoding import LOGPROBS_OF_MARGINS, PromptBatch, Samples
from workbench.policies.merged import merged_weights
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.bounds import Count, CountOrZero, Positive, check_arguments
from workbench.utils.validation import brief, cause_of
from workbench.verifiers.boxes import opened_thought

# What a server answers while it is too busy, is starting, or has lost what computes for it. It
# would refuse anything else again.
WORTH_ANOTHER_TRY = (408, 429, 500, 502, 503, 504)
LONGEST_PAUSE = 30.0  # seconds between two tries
LARGEST_SEED = 2**31  # the seeds that every server takes are below


class ServerError(OSError):
    """A server gave no answer, or refused what it was asked."""


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
        self, path: str, body: Any = None, given_up: Event | None = None, waits: bool = True
    ) -> Any:
        """The server's answer to one request, to POST where there is a body.

        Parameters
        ----------
        path : str
            Such as "/completions".
        body : JSON data, optional
        given_up : Event, optional
            Once it is set, no further try is made.
        waits : bool
            Whether it is asked again where the connection fails, by a server that may have been
            started anew.

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
        for tries in count(1):
            left = started + self.deadline - time.monotonic()
            try:
                with urlopen(request, timeout=left) as answer:
                    return json.load(answer)
            except HTTPError as error:
                answer_text = error.read(1000).decode(errors="replace")
                reason = f"status {error.code}: {cause_of(ValueError(answer_text))}"
                if error.code not in WORTH_ANOTHER_TRY:
                    raise ServerError(f"{self.url}: it refused the request ({reason})") from None
            except (OSError, HTTPException, ValueError) as error:
                reason = cause_of(error)
                if not waits:
                    given_up.set()
            pause = min(2.0 ** (tries - 1), LONGEST_PAUSE)
            seconds = time.monotonic() - started
            if tries > self.retries or seconds + pause >= self.deadline or given_up.wait(pause):
                break
        raise ServerError(
            f"{self.url}: no answer in {seconds:.0f} seconds and {tries} tries ({reason}); a run "
            "goes on from its last checkpoint once the server is there again"
        )

    def choices(
        self, path: str, bodies: Iterable[Any], waits: bool = True
    ) -> list[tuple[Any, Any]]:
        """The one response to each of many requests, in their order, and what it has used.

        waits : see `ask`

        Raises
        ------
        ServerError
            Also for an answer that is not one of the protocol, and for a response that was cut off
            by anything but its own end and the longest length.
        """
        given_up = Event()
        workers = ThreadPoolExecutor(self.at_once)
        try:
            futures = [workers.submit(self.ask, path, body, given_up, waits) for body in bodies]
            answers = [each.result() for each in futures]
        finally:
            # After an error, or an interrupt, nobody waits for the others.
            given_up.set()
            workers.shutdown(wait=False, cancel_futures=True)
        found = []
        for answer in answers:
            try:
                [choice] = answer["choices"]
                reason, usage = choice["finish_reason"], answer["usage"]
            except (KeyError, TypeError, ValueError):
                raise ServerError(f"{self.url}: {brief(answer)} is not of the protocol") from None
            # Anything else is no whole response, and would be rewarded as a short one.
            if reason not in ("stop", "length"):
                raise ServerError(f"{self.url}: a response was ended by {reason!r}")
            found.append((choice, usage))
        return found


def _request_body(model: str, sampling: Sampling, seed: int, most: int) -> dict[str, Any]:
    """What a request says of how its response is sampled."""
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": most,
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
            body = _request_body(self.name, sampling, its_seed, sampling.max_new_tokens)
            text = batch.problems[i].prompt
            if is_chat:
                body["messages"] = [{"role": "user", "content": text}]
            else:
                body["prompt"] = self.template.format(prompt=text)
            bodies.append(body)
        answers = self.server.choices("/chat/completions" if is_chat else "/completions", bodies)
        # A model that only thought has no content.
        texts = [
            (choice["message"]["content"] or "")
            if is_chat
            else opened_thought(body["prompt"]) + choice["text"]
            for body, (choice, _) in zip(bodies, answers)
        ]
        lengths = [usage["completion_tokens"] for _, usage in answers]
        of_prompts = [usage["prompt_tokens"] for _, usage in answers]
        return Rollouts(
            **batch.columns,
            prompt=Ragged.of([np.zeros(n) for n in of_prompts], np.int32),
            response=Ragged.of([np.zeros(n) for n in lengths], np.int32),
            text=np.array(texts, dtype=object),
            truncated=np.array([choice["finish_reason"] == "length" for choice, _ in answers]),
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
        served = server.ask("/models")["data"][0]
        self.name = served["id"]
        self.max_length = served["max_model_len"]
        if client is None:
            from trl.generation.vllm_client import VLLMClient

            base = server.url.rstrip("/").removesuffix("/v1")
            client = VLLMClient(base, connection_timeout=server.deadline)
        self.client = client
        self._joined = False

    def update(self, model: Any) -> None:
        """Hand over all weights of the model as they are now."""
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
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            # The two most likely tokens by their numbers, since two tokens may have one text.
            "return_tokens_as_token_ids": True,
            "logprobs": LOGPROBS_OF_MARGINS if margins else 0,
        }
        texts = [prompts[i].tolist() for i in range(len(prompts))]
        bodies = [
            {**further, "prompt": ids, **_request_body(self.name, sampling, seed, int(most))}
            for ids, seed, most in zip(texts, seeds, room)
        ]
        # A server that was started anew would answer with the weights that it began with.
        answers = self.server.choices("/completions", bodies, waits=False)
        choices = [choice for choice, _ in answers]
        logprobs = [choice["logprobs"] for choice in choices]
        samples = Samples.by_engine(
            Ragged.of([choice["token_ids"] for choice in choices], np.int32),
            Ragged.of([each["token_logprobs"] for each in logprobs], np.float32),
            np.array([choice["finish_reason"] == "length" for choice in choices], dtype=bool),
        )
        if not margins:
            return samples, None
        rows = [[_margin(likely) for likely in each["top_logprobs"]] for each in logprobs]
        return samples, Ragged.of(rows, np.float32)

    def rest(self) -> None:
        """Nothing: the server has its own GPU."""

    def comparable(self, sampling: Sampling) -> bool:
        """Whether log-probabilities are of the whole tempered distribution, as the trainer's are.

        The server takes them over the tokens that top_p and top_k leave.
        """
        return sampling.top_p == 1 and not sampling.top_k


def _margin(likely: Mapping[str, float]) -> float:
    """The gap between the two largest probabilities, by the log-probabilities of likely tokens."""
    second, first = sorted(likely.values())[-2:]
    return math.exp(first) - math.exp(second)
