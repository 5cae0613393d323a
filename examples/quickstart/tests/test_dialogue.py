"""What the agent takes out of replies, and what it tells of outputs."""

import unittest

import dialogue


class Replies(unittest.TestCase):
    def test_the_first_block_is_the_command(self):
        reply = "I look.\n\n```bash\ncd repo && ls\n```\nThen:\n```sh\nrm x\n```"
        self.assertEqual(dialogue.command_of(reply), "cd repo && ls")

    def test_a_heredoc_comes_out_as_it_went_in(self):
        command = "patch -p1 <<'EDIT'\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a \n+b\t\n \nEDIT"
        self.assertEqual(dialogue.command_of(f"So.\n```bash\n{command}\n```\n"), command)

    def test_only_done_without_a_block_ends(self):
        self.assertTrue(dialogue.is_done("It works.\n\nDONE"))
        self.assertFalse(dialogue.is_done("```bash\nmake\n```\nDONE"))
        self.assertFalse(dialogue.is_done("I am not DONE yet."))
        self.assertIsNone(dialogue.command_of("```python\nprint()\n```"))

    def test_test_runs_get_cores_of_their_own(self):
        self.assertEqual(dialogue.profile_of("cd repo && python3 -m pytest -q"), "tests")
        self.assertEqual(dialogue.profile_of("ls"), "shell")

    def test_names_are_the_first_program(self):
        for command, name in [
            ("cd repo && grep -rn x . | head", "grep"),
            ("mkdir -p repo && tar -xf a -C repo && ls repo", "tar"),
            ("cd repo && PYTHONPATH=src:. python3 -m pytest -q", "pytest"),
            ("", "sh"),
        ]:
            self.assertEqual(dialogue.name_of(command), name)


class Observations(unittest.TestCase):
    def test_short_output_is_told_whole(self):
        self.assertEqual(dialogue.observation(1, "no\n"), "exit code 1\nno\n")
        self.assertEqual(dialogue.observation(None, ""), "a signal ended it\n")

    def test_long_output_keeps_both_ends_and_says_what_is_left_out(self):
        told = dialogue.observation(0, "a" * 5000 + "b" * 5000)
        self.assertIn("\n[6000 characters left out]\n", told)
        self.assertLess(len(told), 4100)
        self.assertTrue(told.endswith("b" * 2000))


if __name__ == "__main__":
    unittest.main()
