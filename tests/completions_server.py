"""A server of OpenAI's protocol on the tiny model, with the additions of vLLM's that are needed.

It is what `test_served.py` asks, and kills. Every response is drawn by the policy of the package.
"""

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from conftest import tiny_policy
from safetensors.torch import load_file

from workbench.policies import Plan, Sampling
from workbench.policies.decoding import Request, uniforms_of
from workbench.rollouts import Ragged

LONGEST = 128  # tokens of prompt and response


class Server(ThreadingHTTPServer):
    """Listens at a port of this machine; 0 for any that is free.

    It kills its own process in the middle of its `last` request.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port=0, last=None):
        super().__init__(("127.0.0.1", port), Handler)
        self.policy = tiny_policy()
        self.lock = threading.Lock()
        self.last = last
        self.asked = []
        self.busy = 0  # up to which request all are refused with status 503
        self.ended = None  # why every response ends, in place of the true reason

    def handle_error(self, *_):
        """One who asked may be gone before the answer is there."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        models = {"data": [{"id": "tiny", "max_model_len": LONGEST}]}
        self.answer(200 if self.path == "/v1/models" else 404, models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, dict(self.headers), body))
            if len(self.server.asked) == self.server.last:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(self.server.asked) <= self.server.busy:
                self.answer(503, {"error": "busy"})
            elif self.path == "/weights":
                self.server.policy.load_state_dict(load_file(body["path"]))
                self.answer(200, {})
            elif body["model"] != "tiny":
                self.answer(404, {"error": f"the model {body['model']} does not exist"})
            else:
                self.answer(200, respond(self.server.policy, self.path, body, self.server.ended))


def likely(policy, ids, tokens):
    """The two most likely tokens at each place of a response, as vLLM's server names them."""
    logits = policy.model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    best = logits.log_softmax(-1).topk(2)
    pairs = zip(best.indices.tolist(), best.values.tolist())
    return [{f"token_id:{token}": value for token, value in zip(*pair)} for pair in pairs]


@torch.no_grad()
def respond(policy, path, body, ended=None):
    """The answer to a request for one response, which ended for a reason of its own or as told."""
    sampling = Sampling(
        temperature=body["temperature"],
        top_p=body["top_p"],
        top_k=body.get("top_k", 0),
        max_new_tokens=body["max_tokens"],
        stop=tuple(body.get("stop", ())),
    )
    never = sorted(int(token) for token in body.get("logit_bias") or {})
    policy.never = torch.tensor(never) if never else None
    prompt = body["messages"][0]["content"] if "chat" in path else body["prompt"]
    ids = prompt if isinstance(prompt, list) else policy.encode([prompt])[0]
    uniforms = uniforms_of([body["seed"]], np.ones(1, int), sampling.max_new_tokens)
    alone, room = np.zeros(1, int), np.full(1, sampling.max_new_tokens)
    request = Request(policy, sampling, Plan(), alone, uniforms, room, alone)
    drawn = policy._draw(Ragged.of([ids], np.int32), request)
    size = int(drawn.lengths[0])
    tokens = drawn.tokens[0, :size].tolist()
    text = policy.tokenizer.decode(tokens, skip_special_tokens=True)
    choice = {
        "finish_reason": ended or ("length" if drawn.truncated[0] else "stop"),
        "text": text,
        "message": {"role": "assistant", "content": text},
        "token_ids": tokens,
        "logprobs": {
            "token_logprobs": drawn.logprobs[0, :size].tolist(),
            "top_logprobs": likely(policy, ids, tokens) if body.get("logprobs") else None,
        },
    }
    return {
        "choices": [choice],
        "usage": {"prompt_tokens": len(ids), "completion_tokens": size},
    }


def serve(port, last, told):
    """Answer requests until this process is killed; the port is told."""
    server = Server(port, last)
    told.send(server.server_address[1])
    server.serve_forever()
