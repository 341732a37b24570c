"""The examples of README.md run as they are written there, against a real server.

usage: readme_test.py CAIRND CAIRNCTL MODEL
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from server_process import Client, Server

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DEFAULT_ADDRESS = "127.0.0.1:50051"


def example(language):
    [block] = re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)
    return block


class ReadmeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()  # as ./cairn serve has one
        cls.server = Server(sys.argv[1], sys.argv[3], "--device-memory", "512MiB", "--disk-memory", "256MiB",
                            "--disk-dir", cls.data.name).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.data.cleanup()

    def test_shell_example(self):
        ctl = Client(sys.argv[2], self.server.address)
        outputs = {}
        for line in example("sh").splitlines():
            words = shlex.split(line, comments=True)
            self.assertEqual(words[0], "cairnctl")
            done = ctl.run(*words[1:])
            self.assertEqual((done.returncode, line), (0, line), done.stderr)
            outputs[" ".join(words[1:3])] = done.stdout + done.stderr
        self.assertIn("device", outputs["session decode"])
        self.assertRegex(outputs["session suspend"], r"KV on +disk \d+")
        self.assertIn("sessions/other", outputs["session list"])
        self.assertIn("Paris", outputs["generate -n"])

    def test_python_example(self):
        program = example("python")
        self.assertEqual(program.count(DEFAULT_ADDRESS), 1)
        with tempfile.TemporaryDirectory() as stubs:
            protos = sorted(map(str, (ROOT / "proto" / "cairn" / "v1").glob("*.proto")))
            subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", f"--python_out={stubs}",
                            f"--grpc_python_out={stubs}", *protos], check=True)
            done = subprocess.run([sys.executable, "-c", program.replace(DEFAULT_ADDRESS, self.server.address)],
                                  cwd=stubs, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\[\d+ of \d+ prompt tokens were cached\]")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
