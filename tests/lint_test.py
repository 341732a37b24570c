"""tools/lint.py finds in a group of sources what it finds in each.

Usage: lint_test.py
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import lint

USED_AFTER_MOVE = """#include <string>
#include <utility>
namespace {
std::string Take(std::string text) { return text; }
}  // namespace
size_t %s(std::string text) {
  Take(std::move(text));
  return text.size();
}
"""
CLEAN = """namespace {
int Twice(int x) {
  return 2 * x;
}
}  // namespace
int %s(int x) { return Twice(x); }
"""


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "base").mkdir()  # a layer, as the filter of headers knows them
        self.commands = {}

    def add(self, name, text, flags="-O2"):
        source = self.folder / "base" / f"{name}.cc"
        source.write_text(text % name if "%s" in text else text)
        self.commands[source] = {"directory": str(self.folder), "file": str(source),
                                 "command": f"c++ -std=c++20 {flags} -o {name}.o -c {source}"}
        return source

    def groups(self):
        return [[source.stem for source in members] for _, members in lint.groups_of(list(self.commands), self.commands)]

    def findings(self):
        (self.folder / "compile_commands.json").write_text(json.dumps(list(self.commands.values())))
        (self.folder / ".clang-tidy").write_text((lint.ROOT / ".clang-tidy").read_text())
        (self.folder / "lint").mkdir(exist_ok=True)
        groups = lint.groups_of(list(self.commands), self.commands)
        return [text for index, group in enumerate(groups) for text in lint.findings(self.folder, index, *group)]

    def test_what_goes_together(self):
        self.add("one", CLEAN)
        self.add("two", CLEAN.replace("Twice", "Double"))
        self.add("three", CLEAN)  # has a name of the first
        self.add("four", CLEAN.replace("Twice", "TwoTimes"), flags="-O3")
        self.assertEqual(self.groups(), [["one", "two"], ["three"], ["four"]])

    def test_a_finding_in_a_group_is_that_of_its_source(self):
        self.add("clean", CLEAN)
        self.assertEqual(self.findings(), [])
        self.add("other", "int Other() { return 1; }\n")
        self.add("moved", USED_AFTER_MOVE)
        self.assertEqual(len(self.groups()), 1)
        [text] = self.findings()
        self.assertIn("base/moved.cc:8:10: error: 'text' used after it was moved [bugprone-use-after-move", text)

    def test_sources_that_are_no_group_after_all_are_looked_at_alone(self):
        self.add("one", "namespace {\n  int Own() { return 1; }\n}  // namespace\nint One() { return Own(); }\n")
        self.add("two", "namespace {\n  int Own() { return 2; }\n}  // namespace\nint Two() { return Own(); }\n")
        self.assertEqual(len(self.groups()), 1)
        self.assertEqual(self.findings(), [])


if __name__ == "__main__":
    unittest.main()
