"""Which lines of device code the conformance tests run on the emulator, and which they do not.

    coverage.py BUILD [--least PERCENT]

BUILD is a release build. Every .cu file is compiled for gcov and linked into a copy of the tests. Lines of the .cu files and
of the headers of kernels/cuda that they include count; a line of a template counts once, as run when any instance ran it.
The exit code is 1 below the least share.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys

from rebuild import KERNELS, ROOT, TEST, Build


def run_tests(build, folder):
    """Builds and runs the test; returns the files that gcov wants."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    units = [unit for unit in build.compile if unit.startswith(KERNELS) and unit.endswith(".cu")]
    objects = [folder / (pathlib.Path(unit).name + ".o") for unit in units]
    # Counters may miss a run when two OS threads count at once; atomic ones would want TSan's own functions.
    flags = ["--coverage", "-fprofile-update=single"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: build.compile_unit(*pair, add=flags), zip(units, objects)))
    build.link_test(objects, folder / TEST, add=["--coverage"])
    subprocess.run([folder / TEST, "--gtest_brief=1"], check=True)
    return sorted(folder.glob("*.gcda"))


def count_lines(data):
    """{file: {line: how often it ran}} of kernels/cuda."""
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    for file in data:
        gcov = subprocess.run(["gcov", "--json-format", "--stdout", file], cwd=file.parent, check=True,
                              capture_output=True, text=True)
        for source in json.loads(gcov.stdout)["files"]:
            path = pathlib.Path(file.parent, source["file"]).resolve()
            if not path.is_relative_to(ROOT / KERNELS):
                continue
            for line in source["lines"]:
                counts[path.name][line["line_number"]] += line["count"]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=95)
    arguments = parser.parse_args()
    build = Build(arguments.build.resolve())
    counts = count_lines(run_tests(build, build.folder / "coverage"))
    for name, lines in sorted(counts.items()):
        missed = sorted(line for line, count in lines.items() if count == 0)
        print(f"{name}: {len(lines) - len(missed)} of {len(lines)} lines" + (f"; not {missed}" if missed else ""))
    lines = [count for file in counts.values() for count in file.values()]
    share = 100 * sum(count > 0 for count in lines) / len(lines)
    print(f"{share:.1f} % of {len(lines)} lines")
    return share < arguments.least


if __name__ == "__main__":
    sys.exit(main())
