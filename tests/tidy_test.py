"""tools/tidy.py on small trees: a good one passes, and each broken rule is found at its file and line."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(__file__).resolve().parent.parent / "tools" / "tidy.py"

GOOD = {
    "base/CMakeLists.txt": "add_library(base STATIC check.cc)\n",
    "base/check.h": "// Checks.\n#pragma once\nnamespace cairn {\nvoid Check(bool condition);\n}  // namespace cairn\n",
    "base/check.cc": '#include "base/check.h"\nnamespace cairn {\nvoid Check(bool) {}\n}  // namespace cairn\n',
    "kernels/CMakeLists.txt": "add_library(kernels STATIC cpu/add.cc)\n",
    "kernels/device.h": "// The device.\n#pragma once\nnamespace cairn {\nclass Device;\n}  // namespace cairn\n",
    "kernels/ops.h": '// Operations.\n#pragma once\n#include "kernels/device.h"\nnamespace cairn {}\n',
    "kernels/cpu/add.h": "// Adds.\n#pragma once\nnamespace cairn {}\n",
    "kernels/cpu/add.cc": '#include "kernels/cpu/add.h"\nnamespace cairn {}\n',
    "offload/store.h": '// Where blocks live.\n#pragma once\n#include "kernels/device.h"\nnamespace cairn {}\n',
    "engine/engine.h": '// The engine.\n#pragma once\n#include "offload/store.h"\nnamespace cairn {}\n',
    "service/CMakeLists.txt": "add_executable(cairnd main.cc wire.cc)\n",
    "service/main.cc": '#include <cstdlib>\n#include "kernels/ops.h"\nint main() { return std::getenv("A") != nullptr; }\n',
    "service/wire.cc": '#include <grpcpp/grpcpp.h>\n#include "engine/engine.h"\nnamespace cairn {}\n',
    "tests/CMakeLists.txt": "add_executable(add_test add_test.cc)\n",
    "tests/add_test.cc": '#include "kernels/cpu/add.h"\nnamespace cairn {}\n',
}


def header(body):
    return f"// A header.\n#pragma once\n{body}\nnamespace cairn {{}}\n"


def function(line_count, opening="void Long(int a) {"):
    return "namespace cairn {\n" + opening + "\n" + "  ;\n" * (line_count - 2) + "}\n}  // namespace cairn\n"


def tidy(files, *arguments):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, TIDY, "--root", root, *(arguments or ["--compiler", ""])]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout


class TidyTest(unittest.TestCase):
    def finds(self, changes, *expected):
        """The good tree with these changes has exactly the expected findings."""
        code, output = tidy(GOOD | changes)
        self.assertEqual(output.splitlines()[:-1], list(expected))
        self.assertEqual(code, 1 if expected else 0)

    def test_a_good_tree_passes(self):
        self.finds({})

    def test_an_include_may_not_climb(self):
        self.finds({"base/bad.h": header('\n#include "engine/engine.h"')}, "base/bad.h:4: base may not use engine/engine.h")
        self.finds({"offload/bad.h": header('#include "kernels/ops.h"')}, "offload/bad.h:3: offload may not use kernels/ops.h")
        self.finds({"service/bad.h": header('#include "offload/store.h"')},
                   "service/bad.h:3: service may not use offload/store.h")

    def test_private_folders_are_private(self):
        self.finds({"engine/bad.h": header('#include "kernels/cpu/add.h"')},
                   "engine/bad.h:3: kernels/cpu/ is private to kernels/")

    def test_libraries_stay_at_home(self):
        for include, place in [("<grpcpp/grpcpp.h>", "gRPC and Protobuf is at home in service/ tests/"),
                               ('"cairn/v1/common.pb.h"', "gRPC and Protobuf is at home in service/ tests/"),
                               ("<cuda_runtime.h>", "CUDA is at home in kernels/cuda/ tests/cuda_ tests/cuda_emu/ "
                                                    "tests/on_device/ tests/bench/cuda_"),
                               ("<boost/asio/post.hpp>", "Boost.Asio is at home in offload/"),
                               ("<rocksdb/db.h>", "RocksDB is at home in offload/rocksdb_ tests/bench/rocksdb_")]:
            self.finds({"engine/bad.h": header(f"#include {include}")}, f"engine/bad.h:3: {place} only")
        self.finds({"kernels/bad.h": header("#include <pcre2.h>")}, "kernels/bad.h:3: PCRE2 is at home in engine/ only")

    def test_rocksdb_stays_in_the_sources_that_are_named_for_it(self):
        self.finds({"offload/bad.h": header("#include <rocksdb/db.h>"),
                    "offload/rocksdb_store.h": header("#include <rocksdb/db.h>")},
                   "offload/bad.h:3: RocksDB is at home in offload/rocksdb_ tests/bench/rocksdb_ only")

    def test_includes_have_no_cycle(self):
        self.finds({"base/a.h": header('#include "base/b.h"'), "base/b.h": header('#include "base/a.h"')},
                   "base/a.h:1: include cycle: base/a.h -> base/b.h -> base/a.h")

    def test_own_headers_are_named_from_the_top(self):
        self.finds({"base/bad.h": header('#include "check.h"')},
                   "base/bad.h:3: own headers are named from the top of the tree, not check.h")

    def test_sizes(self):
        self.finds({"engine/long.h": header("\n" * 497)}, "engine/long.h:501: 501 lines; a file has at most 500")
        self.finds({"engine/long.h": header("\n" * 496)})
        self.finds({"engine/wide.h": header("// " + "x" * 98)}, "engine/wide.h:3: 101 columns; a line has at most 100")
        self.finds({"engine/wide.h": header("// " + "\u00e9" * 97)})

    def test_function_length(self):
        self.finds({"base/check.cc": function(71)}, "base/check.cc:2: Long has 71 lines; a function has at most 70 here")
        self.finds({"base/check.cc": function(70)})
        self.finds({"kernels/cpu/add.cc": function(120)})
        self.finds({"kernels/cpu/add.cc": function(121)},
                   "kernels/cpu/add.cc:2: Long has 121 lines; a function has at most 120 here")

    def test_the_function_finder_knows_what_a_function_is(self):
        long_class = "namespace cairn {\nclass Long {\n" + "  int F() { return 0; }\n" * 90 + "};\n}  // namespace cairn\n"
        long_table = "namespace cairn {\nconst int kTable[] = {\n" + "    1,\n" * 90 + "};\n}  // namespace cairn\n"
        self.finds({"base/check.cc": long_class})
        self.finds({"base/check.cc": long_table})
        for opening, name in [("template <class T>\nT Class::Long(T a) const {", "Class::Long"),
                              ("Class::Class(int a) : a_{a}, b_(a) {", "Class::Class"),
                              ('extern "C" int Long(const char* a) {', "Long"),
                              ("TEST(Suite, Case) {", "TEST")]:
            self.finds({"base/check.cc": function(80, opening)},
                       f"base/check.cc:2: {name} has {80 + opening.count(chr(10))} lines; a function has at most 70 here")

    def test_braces_in_strings_and_comments_do_not_count(self):
        body = "namespace cairn {\nvoid F() {\n  // }}}\n  G(\"}{\", '{', R\"(}}})\");\n" + "  ;\n" * 70 + "}\n}\n"
        self.finds({"base/check.cc": body}, "base/check.cc:2: F has 74 lines; a function has at most 70 here")

    def test_shape(self):
        self.finds({"base/a.h": "#pragma once\nnamespace cairn {}\n"},
                   "base/a.h:1: a header opens with its contract, as a comment")
        self.finds({"base/a.h": "// A.\nnamespace cairn {}\n"}, "base/a.h:1: a header has one #pragma once")
        self.finds({"base/a.h": "// A.\n#pragma once\nint x;\n"}, "base/a.h:1: everything of ours is in namespace cairn")

    def test_unfinished_work_and_the_environment(self):
        self.finds({"base/a.h": header("// TO" "DO: later")},
                   "base/a.h:3: finish it, or say in the documentation what is missing")
        self.finds({"service/wire.cc": 'namespace cairn {\nauto a = std::getenv("A");  // getenv\n}\n'},
                   "service/wire.cc:2: the environment is read in service/main.cc only")

    def test_an_inline_constant_has_one_home(self):
        constant = "// A header.\n#pragma once\nnamespace cairn {\ninline constexpr int kRows = %d;\n}\n"
        self.finds({"base/a.h": constant % 1, "kernels/b.h": constant % 2},
                   "kernels/b.h:4: kRows is defined in base/a.h too")

    def test_every_source_is_built(self):
        self.finds({"base/new.cc": "namespace cairn {}\n"}, "base/new.cc:1: no CMakeLists.txt builds this file")
        self.finds({"base/eck.cc": "namespace cairn {}\n"}, "base/eck.cc:1: no CMakeLists.txt builds this file")

    def test_headers_compile_alone_and_the_cache_knows_what_changed(self):
        with tempfile.TemporaryDirectory() as folder:
            cache = ["--compiler", "c++", "--cache", f"{folder}/cache"]
            files = {"base/CMakeLists.txt": "", "base/a.h": header("#include <string>\nstd::string F();"),
                     "base/b.h": header('#include "base/a.h"\nstd::string G();')}
            self.assertEqual(tidy(files, *cache)[0], 0)
            self.assertEqual(tidy(files, *cache)[0], 0)
            files["base/a.h"] = header("class A;")
            code, output = tidy(files, *cache)
            self.assertEqual(code, 1)
            self.assertRegex(output, r"base/b.h:1: does not compile alone: .*'?string'?")
            self.assertEqual(tidy(files, *cache)[0], 1, "a failure is never remembered as a success")


if __name__ == "__main__":
    unittest.main()
