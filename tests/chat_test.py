"""cairnctl chat against a real server: lines from a pipe, keys from a terminal, and a connection that drops.

usage: chat_test.py CAIRND CAIRNCTL MODEL
"""

import os
import pty
import re
import select
import socket
import subprocess
import sys
import threading
import time
import unittest

from server_process import Client, Server

GREEDY = ["--temperature", "0"]
USAGE = r"prompt (\d+) \(([^)]*)\), output (\d+), [\d.]+ tokens/s, first token after [\d.]+ ms"
PATIENCE_SECONDS = 60


class Terminal:
    """A chat on a pseudo-terminal: keys in, screen out."""

    def __init__(self, *command):
        self.process_id, self.terminal = pty.fork()
        if self.process_id == 0:
            try:
                os.execv(command[0], list(map(str, command)))
            finally:
                os._exit(127)  # or the child would go on as a second test run
        self.screen = ""

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def wait_for(self, pattern):
        """Reads until the pattern appears; what was on the screen up to its end is taken off it."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not (match := re.search(pattern, self.screen, re.S)):
            if time.monotonic() > give_up or not self.read():
                raise AssertionError(f"{pattern!r} did not appear; the screen: {self.screen!r}")
        self.screen = self.screen[match.end():]
        return match

    def read(self):
        """False: the program has ended."""
        if not select.select([self.terminal], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self.terminal, 65536)
        except OSError:  # Linux reports a closed terminal so
            return False
        self.screen += piece.decode(errors="replace")
        return bool(piece)

    def exit_code(self):
        while self.read():
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.process_id, 0)[1])


class Cable:
    """A TCP relay to a server that a test can cut after some bytes have come back."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.server = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.bytes_until_cut = None
        self.cut_count = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.server)
            threading.Thread(target=self.copy, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, True), daemon=True).start()

    def copy(self, source, target, counted):
        try:
            while piece := source.recv(4096):
                if counted and self.bytes_until_cut is not None:
                    self.bytes_until_cut -= len(piece)
                    if self.bytes_until_cut <= 0:
                        self.bytes_until_cut = None
                        self.cut_count += 1
                        break
                target.sendall(piece)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)  # wakes the other direction's thread too
            except OSError:
                pass
        source.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1], sys.argv[3], "--device-memory", "512MiB",
                            "--stream-interval", "0").__enter__()  # a message a token: one can be cut off
        cls.ctl = Client(sys.argv[2], cls.server.address)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def terminal(self, *arguments):
        return Terminal(sys.argv[2], "--address", self.server.address, "chat", *arguments)

    def tokens(self, session):
        return int(self.ctl.json("session", "get", session)["token_count"])

    def test_lines_from_a_pipe(self):
        done = self.ctl.run("chat", "--session", "piped", "--system", "You are brief.", "-n", 16, *GREEDY,
                            stdin="Name a river.\n\nName another one.\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        turns = re.findall(USAGE, done.stdout)
        self.assertEqual(len(turns), 2)
        (first_prompt, _, first_output), (second_prompt, second_parts, _) = turns
        # The second turn finds the first one's tokens on the device, but for the last one, which was never an input.
        held = re.search(r"device (\d+)", second_parts)
        self.assertGreaterEqual(int(held.group(1)), int(first_prompt) + int(first_output) - 1)
        self.assertGreater(int(second_prompt), int(held.group(1)))
        self.assertNotIn("\033", done.stdout)
        self.assertNotIn("> ", done.stdout)

    def test_a_turn_is_what_decode_gives(self):
        done = self.ctl.run("chat", "--session", "same", "-n", 12, *GREEDY, stdin="Name a river.\n")
        self.ctl.text("session", "create", "same-2")
        answer = self.ctl.text("session", "decode", "same-2", "-m", "user:Name a river.", "-n", 12, *GREEDY)
        self.assertEqual(re.split("\n" + USAGE, done.stdout)[0], answer)

    def test_commands(self):
        done = self.ctl.run("chat", "--session", "home", "-n", 4, *GREEDY,
                            stdin="Hello\n/fork away\n/sessions\n/truncate 5\n/truncate five\n/resume home\n/resume\n"
                                  "/help\n/nonsense\n/quit\nnever sent\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ["Now in sessions/away, ", "from sessions/home.", "<- here", "sessions/away has 5 tokens now.",
                      "/truncate N: how many tokens stay.", "Now in sessions/home, ", "/resume NAME: which session",
                      "/sessions       list", "/nonsense is no command"]:
            self.assertIn(words, done.stdout)
        self.assertEqual(self.tokens("away"), 5)
        self.assertNotIn("never sent", self.ctl.text("session", "read", "home"))

    def test_errors_leave_the_session_as_it_was(self):
        done = self.ctl.run("chat", "--session", "tried", "-n", 4, "--temperature", 9,
                            stdin="Hello\n/resume nowhere\n/fork Not_An_Id\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cairnctl: INVALID_ARGUMENT: --temperature (sampling.temperature)", done.stderr)
        self.assertIn("cairnctl: NOT_FOUND: ", done.stderr)
        self.assertIn("cairnctl: INVALID_ARGUMENT: /fork (session_id)", done.stderr)
        self.assertEqual(self.tokens("tried"), 0)

    def test_the_flag_of_a_name_is_named(self):
        for name in ("Not_An_Id", "projects/1"):
            done = self.ctl.run("chat", "--session", name)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertRegex(done.stderr, r"^cairnctl: INVALID_ARGUMENT: --session \((name|session_id)\): ")

    def test_a_line_that_is_no_text_is_said_and_the_chat_goes_on(self):
        done = self.ctl.run("chat", "--session", "bytes", "-n", 4, *GREEDY, stdin=b"ab\xff\n/fork \xff\nHello\n")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(re.findall(r"from byte (\d) on", done.stderr), ["2", "6"])
        self.assertEqual(done.stderr.count("\n"), 2)
        self.assertEqual(len(re.findall(USAGE, done.stdout)), 1)
        self.assertIn("Hello", self.ctl.text("session", "read", "bytes"))

    def test_ctrl_c_stops_the_answer_and_keeps_the_session(self):
        chat = self.terminal("--session", "stopped", "-n", 4000, "--ignore-eos", *GREEDY)
        chat.wait_for("> ")
        chat.type("Tell me a long story.\n")
        chat.wait_for(r"story\.\r\n\S")  # the echo, and then the first of the answer
        chat.type("\x03")
        chat.wait_for(r"Stopped\.")
        chat.wait_for("> ")
        kept = self.tokens("stopped")
        self.assertGreater(kept, 5)
        chat.type("/truncate 5\n")
        chat.wait_for("has 5 tokens now")
        chat.wait_for("> ")  # a key typed before the prompt is echoed before it
        chat.type("Hello\n")
        chat.wait_for(r"Hello\r\n\S")
        chat.type("\x03")
        chat.wait_for(r"Stopped\.")
        chat.wait_for("> ")
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)
        self.assertEqual(self.ctl.json("cache", "stats")["running_count"], "0")

    def test_ctrl_c_at_the_prompt_says_how_to_leave(self):
        chat = self.terminal("--session", "prompt")
        chat.wait_for("/help lists commands")
        chat.wait_for("> ")
        chat.type("half a line\x03")
        chat.wait_for(r"Ctrl-D or /quit leaves\.")
        chat.type("/quit\n")
        self.assertEqual(chat.exit_code(), 0)
        self.assertEqual(self.tokens("prompt"), 0)

    def test_a_terminal_shows_usage_dim(self):
        chat = self.terminal("--session", "dim", "-n", 4, *GREEDY)
        chat.wait_for("> ")
        chat.type("Hello\n")
        chat.wait_for("\033\\[2m" + USAGE + "\033\\[0m")
        chat.type("/quit\n")
        self.assertEqual(chat.exit_code(), 0)

    def test_ctrl_c_ends_a_plain_stream(self):
        stream = Terminal(sys.argv[2], "--address", self.server.address, "generate", "-n", "4000", "--ignore-eos",
                          "Once upon a time")
        stream.wait_for(r"\w+ \w+")
        stream.type("\x03")
        stream.wait_for("CANCELLED")
        self.assertEqual(stream.exit_code(), 130)

    def test_a_dropped_stream_goes_on_where_it_stopped(self):
        arguments = ["-n", 200, "--ignore-eos", *GREEDY]
        self.ctl.text("session", "create", "whole")
        whole = self.ctl.text("session", "decode", "whole", "-m", "user:Tell me a story.", *arguments)
        cable = Cable(self.server.address)
        try:
            cable.bytes_until_cut = 3000
            done = Client(sys.argv[2], cable.address).run("chat", "--session", "cut", *arguments,
                                                          stdin="Tell me a story.\n")
        finally:
            cable.close()
        self.assertEqual((done.returncode, done.stderr, cable.cut_count), (0, "", 1))
        pieces = re.split(r"\nConnection lost; asking again from position \d+\.\n", done.stdout)
        self.assertEqual(len(pieces), 2)
        self.assertEqual(re.split(r"\nprompt \d", "".join(pieces))[0], whole)

    def test_a_server_that_is_gone_is_said(self):
        with Server(sys.argv[1], sys.argv[3], "--device-memory", "256MiB") as server:
            chat = subprocess.Popen([sys.argv[2], "--address", server.address, "chat"], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            chat.stdin.write("/sessions\n")
            chat.stdin.flush()
            self.assertIn("NAME", chat.stdout.readline())
            self.assertEqual(server.stop(), 0)
            output, errors = chat.communicate("Hello\n", timeout=PATIENCE_SECONDS)
        self.assertEqual(chat.returncode, 3)
        self.assertIn("is cairnd running there?", errors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
