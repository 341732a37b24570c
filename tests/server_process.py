"""A real cairnd and cairnctl for tests: processes on a free port of the loopback interface."""

import json
import os
import re
import signal
import subprocess
import tempfile


class Server:
    """`with Server(cairnd, model, "--threads", "2") as server:` runs one; it is stopped by SIGTERM at the end."""

    def __init__(self, cairnd, model, *flags, environment=None):
        self.environment = environment and {**os.environ, **environment}
        self.command = [cairnd, "--model", model, "--listen", "127.0.0.1:0", *flags]

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")  # not a pipe, which would fill up
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=self.environment)
        self.summary = []
        for line in self.process.stdout:
            self.summary.append(line.rstrip("\n"))
            if match := re.fullmatch(r"listening on (\S+)", self.summary[-1]):
                self.address = match.group(1)
                return self
        self.log.seek(0)
        raise AssertionError("cairnd did not start: " + self.log.read())

    def stop(self):
        """Asks it to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.process.stdout.close()
        self.log.close()


class Client:
    """Runs cairnctl commands against a server."""

    def __init__(self, cairnctl, address):
        self.cairnctl = cairnctl
        self.address = address

    def run(self, *arguments, stdin="", stdout=subprocess.PIPE):
        """The finished process: its returncode, stdout and stderr. Words and input may be bytes that are no text."""
        words = [a if isinstance(a, bytes) else str(a) for a in arguments]
        address = [] if "--address" in words else ["--address", self.address]
        done = subprocess.run([self.cairnctl, *address, *words], input=stdin if isinstance(stdin, bytes) else stdin.encode(),
                              stdout=stdout, stderr=subprocess.PIPE, timeout=300)
        done.stdout, done.stderr = (done.stdout or b"").decode(), done.stderr.decode()
        return done

    def text(self, *arguments, stdin=""):
        """What a command that succeeds prints, without the last line's end."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout.removesuffix("\n")

    def json(self, *arguments):
        """The one object that a command prints."""
        return json.loads(self.text("--json", *arguments))

    def lines(self, *arguments):
        """The objects of a stream."""
        return [json.loads(line) for line in self.text("--json", *arguments).splitlines()]

    def error(self, *arguments):
        """The error object, and the exit code, of a command that fails."""
        done = self.run("--json", *arguments)
        assert done.returncode != 0, f"{arguments} succeeded: {done.stdout}"
        return json.loads(done.stderr)["error"], done.returncode
