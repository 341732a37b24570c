#!/usr/bin/env python3
"""clang-tidy (its checks: .clang-tidy) over the sources of every layer, or over the files that are named.

    lint.py BUILD [FILE...]

BUILD has the compile commands and must be built: headers are generated.

Nine tenths of the time that clang-tidy takes for a source go to the headers that it includes. So sources that are compiled
alike are looked at several in one, as if they were one file that includes them. What a group says is not shown: when it is
not clean, be it only that two sources have the same name for two things, each of its sources is looked at by itself.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ("base", "kernels", "offload", "engine", "service")
GROUP_MAX = 8
CLANG_TIDY = "clang-tidy-16"
# The commands are GCC's: clang does not know all of their warnings and parameters.
FOREIGN = ("-Wno-unknown-warning-option", "-Wno-unused-command-line-argument")


def flags_of(command):
    """How a source is compiled, without its name and its object's."""
    words = shlex.split(command["command"])
    words = words[1:words.index("-c")]  # behind it comes the source alone
    at = words.index("-o")
    return (*words[:at], *words[at + 2:])


def own_names(source):
    """What a source declares in its unnamed namespaces, roughly: names before a parenthesis, a brace and the like, in lines
    that are not indented."""
    names = set()
    for block in re.findall(r"^namespace \{$(.*?)^\}  // namespace$", source.read_text(), re.S | re.M):
        for line in re.findall(r"^[A-Za-z_].*", block, re.M):
            names.update(re.findall(r"(\w+)(?=\s*(?:[({=;\[]|:(?!:)|$))", line))
    return names


def groups_of(sources, commands):
    """The sources in groups of up to GROUP_MAX that are compiled alike and share no name of their own."""
    groups = []  # of (flags, names, sources)
    for source in sources:
        flags, names = flags_of(commands[source]), own_names(source)
        for group_flags, group_names, members in groups:
            if group_flags == flags and not group_names & names and len(members) < GROUP_MAX:
                members.append(source)
                group_names |= names
                break
        else:
            groups.append((flags, set(names), [source]))
    return [(flags, members) for flags, _, members in groups]


def run(*arguments):
    done = subprocess.run([CLANG_TIDY, "--quiet", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def is_clean(folder, index, flags, members):
    everything = folder / f"group_{index}.cc"
    everything.write_text("".join(f'#include "{member}"  // NOLINT(bugprone-suspicious-include)\n' for member in members))
    wanted = f"--header-filter=/({'|'.join(LAYERS)})/.*\\.(h|cc)$"
    return run(wanted, f"--config-file={ROOT / '.clang-tidy'}", everything, "--", *flags, *FOREIGN)[0] == 0


def findings(build, index, flags, members):
    """What clang-tidy says of the sources of a group that are not clean."""
    if len(members) > 1 and is_clean(build / "lint", index, flags, members):
        return []
    said = [run("-p", build, *(f"--extra-arg={flag}" for flag in FOREIGN), member) for member in members]
    return [text for code, text in said if code != 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda name: pathlib.Path(name).resolve())
    parser.add_argument("files", nargs="*", metavar="FILE", type=lambda name: pathlib.Path(name).resolve())
    arguments = parser.parse_args()
    commands = {pathlib.Path(command["file"]): command
                for command in json.loads((arguments.build / "compile_commands.json").read_text())}
    sources = arguments.files or sorted(file for layer in LAYERS for file in (ROOT / layer).rglob("*.cc"))
    unknown = [source for source in sources if source not in commands]
    if unknown:
        sys.exit(f"lint: {unknown[0]} is not among the compile commands of {arguments.build}")
    (arguments.build / "lint").mkdir(exist_ok=True)
    groups = groups_of(sources, commands)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(findings, arguments.build, index, *group) for index, group in enumerate(groups)]
        for job in concurrent.futures.as_completed(jobs):
            for text in job.result():
                print(text, flush=True)
                failed += 1
    print(f"lint: {len(sources)} files in {len(groups)} groups, {failed} with findings")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
