"""The reference reward server: a small real model behind the routes that reward services
have in vLLM. Its admin routes are not guarded: it must listen where the agent alone is."""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import arena
import arrays
import weights
from model import RewardModel, clipped
from residence import Asleep, Own, Residence

# Bytes of a request taken at most.
MOST = 4 << 20


def as_ids(text):
    """Tokens: bytes of a text, or the ids that were sent."""
    ids = list(text.encode()) if isinstance(text, str) else list(text)
    if any(type(token) is not int or not 0 <= token < weights.VOCABULARY for token in ids):
        raise ValueError(f"token ids are integers from 0 to {weights.VOCABULARY - 1}")
    return ids


def many(value):
    """One text, or a list of ids, as a list of one."""
    single = isinstance(value, str) or (value and isinstance(value[0], int))
    return [value] if single else list(value)


def score(model, body):
    first = as_ids(body["text_1"])
    data = [
        {"index": index, "object": "score", "score": model.reward(first + as_ids(text))}
        for index, text in enumerate(many(body["text_2"]))
    ]
    return {"object": "list", "data": data}


def reward(model, body):
    data = [
        {"index": index, "object": "reward", "data": [model.reward(as_ids(text))]}
        for index, text in enumerate(many(body["input"]))
    ]
    return {"object": "list", "data": data}


def chat(model, body):
    text = "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"])
    content = f"score: {model.reward(as_ids(text))!r}"
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice]}


def completions(model, body):
    """The reward as a text; with `prompt_logprobs`, the log-probability of each given id."""
    ids = clipped(as_ids(body["prompt"]))
    choice = {"index": 0, "text": repr(model.reward(ids)), "finish_reason": "length"}
    if body.get("prompt_logprobs") is not None:
        given = zip(ids[1:], model.log_probs(ids), strict=True)
        choice["prompt_logprobs"] = [None, *({str(id): {"logprob": p}} for id, p in given)]
    return {"object": "text_completion", "choices": [choice]}


ROUTES = {
    "/score": score,
    "/v1/score": score,
    "/reward": reward,
    "/pooling": reward,
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, name, residence, own):
        self.name, self.residence, self.own = name, residence, own
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together, else the second waits for an acknowledgement of the first.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        match urlsplit(self.path).path:
            case "/health":
                self.reply(200, {})
            case "/is_sleeping":
                self.reply(200, {"is_sleeping": not self.server.residence.awake})
            case "/v1/models":
                model = {"id": self.server.name, "object": "model"}
                self.reply(200, {"object": "list", "data": [model]})
            case path:
                self.reply(404, {"error": f"no {path}"})

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        if length > MOST:
            self.close_connection = True
            self.reply(413, {"error": f"a request has at most {MOST} bytes"})
            return
        body = self.rfile.read(length)
        path = urlsplit(self.path).path
        try:
            self.reply(200, self.answer(path, body))
        except Asleep:
            self.reply(503, {"error": "the server sleeps"})
        except LookupError as error:
            self.reply(404 if path not in ROUTES else 400, {"error": f"no {error}"})
        except (ValueError, TypeError) as error:
            self.reply(400, {"error": str(error)})

    def answer(self, path, body):
        own = self.server.own
        if path in ("/sleep", "/wake_up"):
            if own is None:
                raise ValueError("the agent keeps the weights: its socket says when to sleep")
            own.sleep() if path == "/sleep" else own.wake()
            return {}
        route = ROUTES[path]
        with self.server.residence.use() as model:
            return {"model": self.server.name, **route(model, json.loads(body))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="directory with model.safetensors")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="reward")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--keep-nothing", action="store_true", help="read the file at each wake-up")
    args = parser.parse_args()
    library, layout = arrays.choose(args.device), weights.read_layout(args.model)
    residence = Residence(RewardModel(library, layout))
    own = None
    if path := os.environ.get("ROLLWRIGHT_ARENA"):
        import cuda

        arena.Arena(path, residence, {"memfd": arena.Files, "cuda": cuda.Blocks}).start()
    else:
        own = Own(residence, layout, library, keeps=not args.keep_nothing)
        own.wake()
    server = Server((args.host, args.port), args.name, residence, own)
    print(f"reward server on http://{args.host}:{server.server_port}", file=sys.stderr)
    server.serve_forever()


if __name__ == "__main__":
    main()
