"""A small transformer with a reward head. Its tokens are bytes, its weights are random: it
judges nothing, but does the work of a judge and gives the same answer each time."""

from weights import CONTEXT


class RewardModel:
    """The model over weights that lie at an address."""

    def __init__(self, arrays, layout):
        self.arrays, self.layout = arrays, layout
        self.tensors = {}

    def bind(self, address):
        """The weights lie there from now on."""
        self.tensors = {
            name: self.arrays.view(address + offset, shape)
            for name, (offset, shape) in self.layout.tensors.items()
        }

    def release(self):
        """The weights lie nowhere."""
        self.arrays.sync()
        self.tensors = {}

    def hidden(self, ids):
        """The last layer's output at each token, normalised."""
        x, t = self.arrays, self.tensors
        length = len(ids)
        values = x.rows(t["embed"], x.tokens(ids)) + x.rows(
            t["position"], x.tokens(list(range(length)))
        )
        mask = x.causal(length)
        for layer in range(self.layout.shape.layers):
            qkv = x.product(x.norm(values), t[f"{layer}.qkv"])
            width = qkv.shape[-1] // 3
            q, k, v = (
                x.heads(qkv[:, part * width : (part + 1) * width], self.layout.shape.heads)
                for part in range(3)
            )
            scores = x.product(q, x.turned(k)) * (q.shape[-1] ** -0.5) + mask
            attended = x.merge(x.product(x.softmax(scores), v))
            values = values + x.product(attended, t[f"{layer}.out"])
            up = x.gate(x.product(x.norm(values), t[f"{layer}.up"]))
            values = values + x.product(up, t[f"{layer}.down"])
        return x.norm(values)

    def reward(self, ids):
        """One number for a text."""
        hidden = self.hidden(clipped(ids))
        return self.arrays.list(self.arrays.product(hidden[-1:], self.tensors["reward"]))[0]

    def log_probs(self, ids):
        """Of each token but the first, given those before it."""
        import math

        ids = clipped(ids)
        embed = self.arrays.turned(self.tensors["embed"])
        logits = self.arrays.product(self.hidden(ids), embed)
        result = []
        for position in range(len(ids) - 1):
            row = self.arrays.list(logits[position])
            most = max(row)
            total = most + math.log(sum(math.exp(value - most) for value in row))
            result.append(row[ids[position + 1]] - total)
        return result


def clipped(ids):
    """At least one token, at most the last of the context."""
    return list(ids)[-CONTEXT:] or [0]
