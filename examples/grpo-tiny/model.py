"""A decoder-only transformer of about a million weights, in plain JAX.

Two ways through the same weights: `logprobs` reads whole sequences (training), `decode`
reads one token per slot with a key/value cache (the engine).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True)
class Config:
    """Sizes of the model. Hashable, so that jit takes it as a static argument."""

    vocab: int = 16
    context: int = 32  # longest sequence, in tokens
    width: int = 128
    layers: int = 5
    heads: int = 4

    @property
    def head_width(self):
        return self.width // self.heads


def init(config, key):
    """Random weights: a dict of float32 arrays; a layer's are stacked along axis 0."""
    c, width, keys = config, config.width, iter(jax.random.split(key, 8))

    def normal(scale, *shape):
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    into, out = width**-0.5, (2 * c.layers * width) ** -0.5
    return {
        "embed": normal(0.1, c.vocab, width),
        "position": normal(0.1, c.context, width),
        "qkv": normal(into, c.layers, width, 3 * width),
        "attention_out": normal(out, c.layers, width, width),
        "mlp_in": normal(into, c.layers, width, 4 * width),
        "mlp_out": normal(0.5 * out, c.layers, 4 * width, width),
        "norm": jnp.ones((c.layers, 2, width)),
        "final_norm": jnp.ones((width,)),
        "unembed": normal(0.1 * into, width, c.vocab),
    }


LAYERED = ("qkv", "attention_out", "mlp_in", "mlp_out", "norm")


def size(params):
    """Number of weights."""
    return sum(int(np.prod(value.shape)) for value in params.values())


def save(params, path):
    save_file({name: np.asarray(value) for name, value in params.items()}, path)


def load(path):
    return {name: jnp.asarray(value) for name, value in load_file(path).items()}


def _rms(x, gain):
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _mlp(x, layer):
    return jax.nn.gelu(_rms(x, layer["norm"][1]) @ layer["mlp_in"]) @ layer["mlp_out"]


def _logits(params, x):
    return _rms(x, params["final_norm"]) @ params["unembed"]


def _layers(params, config):
    for i in range(config.layers):
        yield {name: params[name][i] for name in LAYERED}


def logits(params, config, tokens):
    """Logits `[batch, length, vocab]` of the token after each of `tokens` `[batch, length]`."""
    batch, length = tokens.shape
    x = params["embed"][tokens] + params["position"][:length]
    causal = jnp.tril(jnp.ones((length, length), bool))
    for layer in _layers(params, config):
        qkv = _rms(x, layer["norm"][0]) @ layer["qkv"]
        q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, config.heads, config.head_width), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * config.head_width**-0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + mixed @ layer["attention_out"]
        x = x + _mlp(x, layer)
    return _logits(params, x)


def logprobs(params, config, tokens):
    """Log-probability of each token given those before it; 0 for the first. Also the entropy."""
    table = jax.nn.log_softmax(logits(params, config, tokens)[:, :-1])
    picked = jnp.take_along_axis(table, tokens[:, 1:, None], -1)[..., 0]
    entropy = -jnp.sum(jnp.exp(table) * table, -1)
    pad = ((0, 0), (1, 0))
    return jnp.pad(picked, pad), jnp.pad(entropy, pad)


def empty_cache(config, slots):
    """Keys and values of each layer: `[slots, context, heads, head width]`."""
    shape = (slots, config.context, config.heads, config.head_width)
    return tuple((jnp.zeros(shape), jnp.zeros(shape)) for _ in range(config.layers))


def decode(params, config, cache, slots, tokens, positions):
    """Reads one token in each of `slots`, at its position. A slot beyond the cache's is void.

    Returns the logits `[len(slots), vocab]` of the next tokens, and the cache.
    """
    seen = jnp.arange(config.context) <= positions[:, None]
    x = params["embed"][tokens] + params["position"][positions]
    filled = []
    for layer, (keys, values) in zip(_layers(params, config), cache, strict=True):
        qkv = _rms(x, layer["norm"][0]) @ layer["qkv"]
        q, k, v = jnp.moveaxis(qkv.reshape(-1, 3, config.heads, config.head_width), 1, 0)
        keys = keys.at[slots, positions].set(k, mode="drop")
        values = values.at[slots, positions].set(v, mode="drop")
        filled.append((keys, values))
        scores = jnp.einsum("shd,skhd->shk", q, keys[slots]) * config.head_width**-0.5
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9))
        mixed = jnp.einsum("shk,skhd->shd", weights, values[slots]).reshape(x.shape)
        x = x + mixed @ layer["attention_out"]
        x = x + _mlp(x, layer)
    return _logits(params, x), tuple(filled)


if __name__ == "__main__":
    import sys

    file, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    weights = init(Config(), jax.random.key(seed))
    save(weights, file)
    print(f"{size(weights):,} random weights: {file}")
