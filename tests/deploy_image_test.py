"""The Dockerfiles of deploy/: what they name exists, the base is pinned, and the image has what the programs need.

usage: deploy_image_test.py CAIRND CAIRNCTL MODEL
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

from deployment import DEPLOY, ROOT, config, dockerfile, last, manifest, port_of

PROGRAMS = sys.argv[1:3]
IN_EVERY_IMAGE = {"libc6", "libgcc-s1"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(program):
    """Name and path of every shared library that the program loads."""
    return dict(re.findall(r"^\t(\S+) => (/\S+)", output("ldd", program), re.M))


def owners(paths):
    """The package that each file is of."""
    candidates = [known_as for path in paths for known_as in (path, f"/usr{path}")]  # /lib is a link to /usr/lib
    done = subprocess.run(["dpkg", "-S", *candidates], capture_output=True, text=True)  # some of them it does not know
    found = dict(reversed(line.split(": ")) for line in done.stdout.splitlines())
    return {path: found.get(path, found.get(f"/usr{path}", "none")).split(":")[0] for path in paths}


def with_dependencies(packages):
    """The packages and all that they depend on, of those that are installed."""
    lines = output("dpkg-query", "-W", "-f", "${Package}\t${Depends}, ${Pre-Depends}\n").splitlines()
    depends = {name: set(re.findall(r"(?:^|[,|]\s*)([a-z0-9][a-z0-9+.-]+)", text))
               for name, text in (line.split("\t") for line in lines)}
    found, waiting = set(), list(packages)
    while waiting:
        name = waiting.pop()
        if name in depends and name not in found:
            found.add(name)
            waiting += depends[name]
    return found


def is_ignored(path):
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    return any(part.name == pattern.removeprefix("**/") if pattern.startswith("**/") else str(part) == pattern
               for part in [path, *path.parents] for pattern in patterns)


class ImageTest(unittest.TestCase):
    def setUp(self):
        self.instructions = dockerfile()

    def runtime_packages(self):
        [install] = [text for name, text in self.instructions if name == "RUN" and "apt-get install" in text]
        words = install.split("apt-get install")[1].split("&&")[0].split()
        return [word for word in words if not word.startswith("-")]

    def test_bases_are_pinned(self):
        bases = set()
        for name in ("Dockerfile", "model.Dockerfile"):
            instructions = dockerfile(name)
            bases |= {text.removeprefix("BASE=") for what, text in instructions if what == "ARG" and "BASE=" in text}
            for stage in [text for what, text in instructions if what == "FROM"]:
                self.assertEqual(stage.split()[0], "${BASE}")
        [base] = bases
        self.assertRegex(base, r"^debian:12\.\d+-slim$")
        for path in DEPLOY.rglob("*"):
            if path.is_file():
                self.assertNotIn(":latest", path.read_text(), path)

    def test_sources_of_copies_are_there(self):
        built = {f"/src/build/release/service/{pathlib.Path(program).name}" for program in PROGRAMS}
        copied = set()
        for arguments in [text.split() for name, text in self.instructions if name == "COPY"]:
            if arguments[0] == "--from=build":
                copied |= set(arguments[1:-1])
                continue
            for source in arguments[:-1]:
                self.assertTrue((ROOT / source).exists(), source)
                self.assertFalse(is_ignored(pathlib.PurePath(source)), source)
        self.assertEqual(copied, built)
        self.assertIn("COPY .", [f"{name} {text}"[:6] for name, text in self.instructions])
        layers = re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(), re.M)
        for name in ["CMakeLists.txt", "CMakePresets.json", *layers]:
            self.assertFalse(is_ignored(pathlib.PurePath(name)), name)
        for folder in (".cache", "build", ".venv", "tests/__pycache__"):
            self.assertTrue(is_ignored(pathlib.PurePath(folder)), folder)

    def test_build_stage_installs_what_the_script_lists(self):
        self.assertIn(("RUN", "./cairn setup --packages"), self.instructions)
        [build] = [text for name, text in self.instructions if name == "RUN" and "cmake" in text]
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        self.assertIn(re.search(r"--build --preset (\S+)", build)[1], [p["name"] for p in presets["buildPresets"]])

    def test_runtime_stage_has_every_library(self):
        packages = self.runtime_packages()
        self.assertEqual(packages, sorted(set(packages)))
        paths, direct = {}, set()
        for program in PROGRAMS:
            paths |= libraries(program)
            direct |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", program)))
        package = owners(paths.values())
        reached = with_dependencies([*packages, *IN_EVERY_IMAGE])
        self.assertEqual({name for name, path in paths.items() if package[path] not in reached}, set())
        wanted = {package[paths[name]] for name in direct if name in paths} - IN_EVERY_IMAGE
        self.assertEqual(set(packages), wanted, "what is installed, and what the programs name")

    def test_image_runs_as_the_pod_does(self):
        user, _, group = last(self.instructions, "USER").partition(":")
        self.assertTrue(int(user) > 0 and int(group) > 0)
        [container] = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
        self.assertEqual(json.loads(last(self.instructions, "ENTRYPOINT")), ["cairnd"])
        self.assertEqual(json.loads(last(self.instructions, "CMD")), container["args"])
        self.assertIn(("COPY", f"deploy/cairn.conf {container['args'][1]}"), self.instructions)
        ports = [port_of(config().listen), port_of(config().health_listen)]
        self.assertEqual(last(self.instructions, "EXPOSE"), " ".join(map(str, ports)))
        self.assertEqual(last(self.instructions, "STOPSIGNAL"), "SIGTERM")
        folder = next(text for name, text in self.instructions if name == "RUN" and text.startswith("install -d"))
        volume = pathlib.PurePath(config().disk_dir).parent
        self.assertEqual(folder, f"install -d -o {user} -g {group} -m 0700 {volume}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
