"""What ./cairn refuses, it refuses before it installs or builds anything.

Usage: cairn_script_test.py
"""

import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CairnScriptTest(unittest.TestCase):
    def refused(self, *words):
        done = subprocess.run([ROOT / "cairn", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr

    def test_words_that_a_verb_does_not_know(self):
        for words in (["build", "--foo"], ["demo", "fast"], ["test", "--msan"], ["test", "--asan", "--tsan"],
                      ["test", "--soak", "now"], ["setup", "all"], ["setup", "--packages", "all"],
                      ["bench", "--setup", "all"], ["help", "build"]):
            self.assertEqual(self.refused(*words).splitlines(),
                             [f"cairn: {words[0]} does not know {words[-1]}; ./cairn help lists what there is"])

    def test_a_verb_that_there_is_not(self):
        self.assertIn("there is no verb frobnicate", self.refused("frobnicate"))

    def test_a_row_of_the_bench_that_there_is_not(self):
        errors = self.refused("bench", "--quick", "nosuchrow")
        self.assertIn("no row is called nosuchrow; there are prefill-512, ", errors)
        self.assertNotIn("Build", errors)


if __name__ == "__main__":
    unittest.main()
