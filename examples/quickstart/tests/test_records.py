"""A batch is taken only where its parts fit together."""

import unittest
from types import SimpleNamespace as Made

import records


def batch(**changes):
    fields = {
        "id": "g.0",
        "reward": 0.5,
        "token_ids": [7, 8, 9],
        "loss_mask": [0, 1, 1],
        "logprobs": [None, -0.5, -1.0],
        "versions": [Made(start=1, end=3, version=4)],
    }
    return Made(id=3, groups=[Made(trajectories=[Made(**(fields | changes))])])


class Batches(unittest.TestCase):
    def test_a_batch_is_counted(self):
        self.assertEqual(
            records.batch(batch()),
            {
                "id": 3,
                "groups": 1,
                "trajectories": 1,
                "tokens": 3,
                "trained_tokens": 2,
                "versions": [4],
                "mean_reward": 0.5,
            },
        )

    def test_what_does_not_fit_is_refused(self):
        for wrong in (
            {"loss_mask": [0, 1]},
            {"logprobs": [None, None, -1.0]},
            {"logprobs": [-0.1, -0.5, -1.0]},
            {"token_ids": [7, 8]},
        ):
            with self.assertRaisesRegex(ValueError, "g.0"):
                records.batch(batch(**wrong))


if __name__ == "__main__":
    unittest.main()
