"""Builds a test of the CUDA backend once more with some units compiled otherwise, by the build's own commands."""

import json
import pathlib
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEST = "cuda_conformance_test"
LIBRARY = "cairn_cuda_emulated"
KERNELS = "kernels/cuda/"


class Build:
    """A release build: the commands that compile the sources and link a test."""

    def __init__(self, folder, test=TEST):
        self.folder = folder
        commands = json.loads((folder / "compile_commands.json").read_text())
        self.compile = {str(pathlib.Path(c["file"]).relative_to(ROOT)): shlex.split(c["command"])
                        for c in commands
                        if f"/{LIBRARY}.dir/" in c["command"] or f"/{KERNELS}" not in c["file"]}
        link = subprocess.run(["ninja", "-C", folder, "-t", "commands", test], check=True, capture_output=True,
                              text=True).stdout.splitlines()[-1]
        # CMake wraps it: ": && COMMAND && :".
        self.link = shlex.split(link.removeprefix(": && ").removesuffix(" && :"))

    def compile_unit(self, unit, output, source=None, overlay=None, add=()):
        """`source` in place of `unit`; headers are looked for in `overlay` first."""
        command = list(self.compile[unit])
        command[command.index("-o") + 1] = str(output)
        if source:
            command[command.index("-c") + 1] = str(source)
        if overlay:
            first = next(i for i, word in enumerate(command) if word.startswith("-I"))
            command.insert(first, f"-I{overlay}")
        for flag, value in (("-MF", f"{output}.d"), ("-MT", str(output))):
            if flag in command:
                command[command.index(flag) + 1] = value
        subprocess.run([*command, *add], cwd=self.folder, check=True, capture_output=True, text=True)

    def link_test(self, objects, output, add=()):
        """The objects come before the library, which then has nothing to add in their place."""
        command = list(self.link)
        at = command.index("-o")
        command[at + 1] = str(output)
        subprocess.run([*command[:at], *map(str, objects), *command[at:], *add], cwd=self.folder, check=True,
                       capture_output=True, text=True)
