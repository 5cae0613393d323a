"""What a run of the test suite is worth."""

import unittest

import grade


class Grades(unittest.TestCase):
    def test_the_summary_is_read_past_subtests_and_decoration(self):
        line = "=== 3 failed, 1189 passed, 7 subtests passed in 62.46s (0:01:02) ==="
        self.assertEqual(grade.counts(f"....\n{line}\n"), (1189, 3))
        self.assertEqual(grade.counts("1 warning, 1 error in 0.61s"), (0, 1))
        self.assertEqual(grade.counts("1 passed, 2 errors in 0.61s"), (1, 2))
        self.assertIsNone(grade.counts("no tests ran in 1s\nimagine passed in vain\n"))

    def test_a_whole_suite_is_worth_one_and_anything_less_nothing(self):
        self.assertEqual(grade.grade(0, "1192 passed in 2.18s", 1192), 1)
        self.assertEqual(grade.grade(1, "3 failed, 1189 passed in 2s", 1192), 0)
        self.assertEqual(grade.grade(0, "12 passed in 2s", 1192), 0, "tests were lost")
        self.assertEqual(grade.grade(2, "1 error in 0.1s", 1192), 0)

    def test_what_says_nothing_about_the_edits_is_no_reward(self):
        different = "Different tests were collected between gw0 and gw1"
        for code, output in [(-9, ""), (3, ""), (127, "sh: not found"), (1, ""), (1, different)]:
            with self.assertRaises(grade.NoReward):
                grade.grade(code, output, 1)


if __name__ == "__main__":
    unittest.main()
