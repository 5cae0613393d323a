"""The update and the checker."""

import subprocess
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).parent.parent
sys.path.insert(0, str(FOLDER))

import jax
import numpy as np

import grpo
import model

CONFIG = model.Config(width=32, layers=1)


def check(question, answer):
    command = ["busybox", "awk", "-f", str(FOLDER / "check.awk")]
    done = subprocess.run(
        command, input=f"{question}\n{answer}\n", capture_output=True, text=True, check=True
    )
    return float(done.stdout)


class Checker(unittest.TestCase):
    def test_rewards(self):
        for answer, reward in (
            ("194", 1),
            ("184", 2 / 3),
            ("19", 2 / 3),
            ("1940", 3 / 4),
            ("491", 1 / 3),
            ("", 0),
            ("_ ?#", 0),
            ("94", 0),
        ):
            self.assertAlmostEqual(check("491", answer), reward, 5, answer)


class Update(unittest.TestCase):
    def setUp(self):
        self.params = model.init(CONFIG, jax.random.key(0))
        tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, (8, 12))
        mask = np.zeros(tokens.shape, np.float32)
        mask[:, 5:9] = 1
        self.batch = {
            "tokens": tokens,
            "mask": mask,
            "logprobs": self.logprobs(self.params, tokens) * mask,
            "advantages": np.array([1, -1] * 4, np.float32),
        }

    def logprobs(self, params, tokens):
        return np.asarray(model.logprobs(params, CONFIG, tokens)[0])

    def test_what_was_better_gets_likelier_and_what_was_worse_less_likely(self):
        settings = grpo.Settings(learning_rate=1e-3, warm_up=1, minibatches=1, entropy=0.0)
        after, _, logs = grpo.train(
            self.params, grpo.optimizer(self.params), CONFIG, settings, self.batch
        )
        mask, tokens = self.batch["mask"], self.batch["tokens"]
        change = ((self.logprobs(after, tokens) - self.batch["logprobs"]) * mask).sum(1)
        self.assertTrue((change * self.batch["advantages"] > 0).all(), change)
        self.assertAlmostEqual(logs["clipped"], 0)
        self.assertAlmostEqual(logs["kl"], 0, 4)

    def test_a_ratio_out_of_bounds_has_no_gradient(self):
        settings = grpo.Settings(entropy=0.0)
        # What was better is much likelier already, and what was worse much less likely.
        away = self.batch["logprobs"] - self.batch["advantages"][:, None] * self.batch["mask"]

        def gradient(logprobs):
            batch = {**self.batch, "logprobs": logprobs}
            grads = jax.grad(grpo.loss, has_aux=True)(self.params, CONFIG, settings, batch)[0]
            return max(float(abs(value).max()) for value in grads.values())

        self.assertEqual(gradient(away), 0)
        self.assertGreater(gradient(self.batch["logprobs"]), 0)

    def test_advantages_are_relative_to_the_group(self):
        groups = np.array([[0.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
        np.testing.assert_allclose(
            grpo.advantages(groups), [[-1, 1, -1, 1], [0, 0, 0, 0]], atol=1e-3
        )
