"""Group-relative policy optimisation (GRPO, arXiv 2402.03300, section 4.1), without KL term.

The ratio is taken against the log-probabilities that the engine recorded while it
generated, so a batch that is a policy version behind is corrected for.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import model


@dataclass(frozen=True)
class Settings:
    """Hashable, so that jit takes it as a static argument."""

    learning_rate: float = 2e-3
    warm_up: int = 5  # updates until the full rate
    decay: int = 200  # updates over which it falls, to a tenth at least
    clip_low: float = 0.2
    clip_high: float = 0.28  # wider above: arXiv 2503.14476, section 3.1
    entropy: float = 0.02  # weight of the entropy bonus
    weight_decay: float = 0.01
    max_norm: float = 1.0  # of the gradient
    minibatches: int = 2  # updates per batch, each on its share of the groups


def advantages(rewards):
    """Rewards of a group (the last axis) against it: less their mean, over their deviation."""
    centred = rewards - rewards.mean(-1, keepdims=True)
    return centred / (rewards.std(-1, keepdims=True) + 1e-4)


def loss(params, config, settings, batch):
    """The clipped surrogate, averaged over generated tokens. Returns it and what to log."""
    now, entropy = model.logprobs(params, config, batch["tokens"])
    mask, advantage = batch["mask"], batch["advantages"][:, None]
    log_ratio = jnp.where(mask > 0, now - batch["logprobs"], 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
    gain = jnp.minimum(ratio * advantage, clipped * advantage)
    count = jnp.maximum(mask.sum(), 1)

    def mean(x):
        return jnp.sum(x * mask) / count

    logs = {
        "entropy": mean(entropy),
        "clipped": mean((ratio != clipped) * 1.0),
        "kl": mean(ratio - 1 - log_ratio),  # of the engine's policy from this one
    }
    return -mean(gain) - settings.entropy * logs["entropy"], logs


def optimizer(params):
    """Adam's state: first and second moments, and the number of updates."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return zeros, zeros, jnp.zeros((), jnp.int32)


@partial(jax.jit, static_argnames=("config", "settings"))
def update(params, state, config, settings, batch):
    """One AdamW step. The old weights stay valid: the engine may still serve them."""
    (_, logs), grads = jax.value_and_grad(loss, has_aux=True)(params, config, settings, batch)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, settings.max_norm / (norm + 1e-9))
    grads = jax.tree.map(lambda g: g * scale, grads)
    first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, second, grads)
    rise, fall = count / settings.warm_up, 1 - count / settings.decay
    rate = settings.learning_rate * jnp.minimum(1.0, rise) * jnp.maximum(0.1, fall)

    def step(weight, m, v):
        m, v = m / (1 - 0.9**count), v / (1 - 0.98**count)
        decay = settings.weight_decay * weight if weight.ndim > 1 else 0.0
        return weight - rate * (m / (jnp.sqrt(v) + 1e-8) + decay)

    params = jax.tree.map(step, params, first, second)
    return params, (first, second, count), {**logs, "gradient_norm": norm}


def train(params, state, config, settings, batch):
    """One pass over a batch in minibatches. Returns weights, state and the mean of the logs."""
    rows = len(batch["tokens"])
    parts = np.array_split(np.arange(rows), settings.minibatches)
    seen = []
    for part in parts:
        piece = {name: value[part] for name, value in batch.items()}
        params, state, logs = update(params, state, config, settings, piece)
        seen.append(logs)
    logs = {name: float(np.mean([x[name] for x in seen])) for name in seen[0]}
    return params, state, logs
