"""Every command of cairnctl against a real server: as text, as JSON, and the errors.

usage: cairnctl_test.py CAIRND CAIRNCTL MODEL
"""

import json
import subprocess
import sys
import tempfile
import unittest

from server_process import Client, Server

GREEDY = ["--temperature", "0"]


class CairnctlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1], sys.argv[3], "--device-memory", "512MiB").__enter__()
        cls.ctl = Client(sys.argv[2], cls.server.address)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, code, field, *arguments, flag=None):
        """The command fails with this code, and names this field and its flag, in JSON and as one line of text."""
        error, exit_code = self.ctl.error(*arguments)
        self.assertEqual((error["code"], exit_code), (code, 1), error)
        done = self.ctl.run(*arguments)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.startswith(f"cairnctl: {code}: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        if field:
            self.assertEqual([(v["field"], v.get("flag")) for v in error["field_violations"]], [(field, flag)])
            self.assertIn(f"{flag} ({field}): " if flag else f"{field}: ", done.stderr)
        return error

    def test_model_and_health(self):
        model = self.ctl.json("model", "get")
        self.assertEqual((model["architecture"], model["vocabulary_size"]), ("llama", 49152))
        self.assertEqual(model["kv"]["bytes_per_token"], "23040")
        self.assertIn("23040 bytes a token", self.ctl.text("model", "get"))
        self.assertEqual(self.ctl.text("health"), "serving")
        self.assertEqual(self.ctl.json("health"), {"status": "SERVING"})
        self.assertEqual(self.ctl.text("health", "liveness"), "serving")
        self.assertEqual(self.ctl.error("health", "nothing-of-this-name")[0]["code"], "NOT_FOUND")

    def test_tokens_and_text(self):
        text = "Grüße, 世界! 👋🏽"
        ids = self.ctl.json("tokenize", text)["ids"]
        self.assertGreater(len(ids), 4)
        listed = ",".join(map(str, ids))
        self.assertEqual(self.ctl.text("tokenize", text), listed)
        self.assertEqual(self.ctl.text("detokenize", listed), text)
        chat = self.ctl.json("tokenize", "-m", "system:Be brief.", "-m", "user:Hi: there")["ids"]
        rendered = ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi: there<|im_end|>\n"
                    "<|im_start|>assistant\n")
        self.assertNotEqual(chat, self.ctl.json("tokenize", rendered)["ids"], "typed text makes no control tokens")
        self.assertEqual(self.ctl.json("detokenize", ",".join(map(str, chat)))["text"].count("Be brief."), 1)

    def test_text_from_standard_input(self):
        self.assertEqual(self.ctl.text("tokenize", "-", stdin="Hello world"), self.ctl.text("tokenize", "Hello world"))

    def test_generate(self):
        done = self.ctl.run("generate", "The capital of France is", "-n", 12, *GREEDY)
        self.assertIn("Paris", done.stdout)
        self.assertRegex(done.stderr, r"^prompt 5 \((device|new) 5\), output \d+, [\d.]+ tokens/s, first token after ")
        messages = self.ctl.lines("generate", "The capital of France is", "-n", 12, "--logprobs", 2, *GREEDY)
        self.assertEqual("".join(m["text"] for m in messages), done.stdout.removesuffix("\n"))
        ids = [i for m in messages for i in m["token_ids"]]
        logprobs = [p for m in messages for p in m["logprobs"]]
        self.assertEqual([p["token_id"] for p in logprobs], ids)
        self.assertTrue(all(len(p["top"]) == 2 for p in logprobs))
        self.assertEqual(messages[-1]["finish_reason"], "FINISH_REASON_LENGTH")
        self.assertEqual(messages[-1]["usage"]["completion_tokens"], "12")
        from_tokens = self.ctl.text("generate", "--tokens", self.ctl.text("tokenize", "The capital of France is"),
                                    "-n", 12, *GREEDY)
        self.assertEqual(from_tokens, done.stdout.removesuffix("\n"))

    def test_sampling_flags_arrive(self):
        prompt = ["generate", "Once upon a time", "-n", 16]
        first = self.ctl.text(*prompt, "--temperature", 1.5, "--seed", 7)
        self.assertEqual(self.ctl.text(*prompt, "--temperature", 1.5, "--seed", 7), first)
        self.assertNotEqual(self.ctl.text(*prompt, "--temperature", 1.5, "--seed", 8), first)
        greedy = self.ctl.text(*prompt, *GREEDY)
        self.assertEqual(self.ctl.text(*prompt, "--temperature", 1.5, "--top-k", 1), greedy)
        self.assertEqual(self.ctl.text(*prompt, *GREEDY, "--stop", " a ", "--stop", greedy[4:9]), greedy[:4])
        last = self.ctl.lines(*prompt, *GREEDY, "--logit-bias", "28=100", "--stop-token-id", 28)[-1]
        self.assertEqual((last["finish_reason"], last["stop_token_id"]), ("FINISH_REASON_STOP", 28))

    def test_life_of_a_session(self):
        self.assertIn("sessions/life", self.ctl.text("session", "create", "life", "-m", "system:You are brief.",
                                                     "--display-name", "A life", "--ttl", "2h", "--priority", 70,
                                                     "--annotation", "color=blue", *GREEDY))
        session = self.ctl.json("session", "get", "life")
        self.assertEqual((session["ttl"], session["priority"], session["display_name"]), ("7200s", 70, "A life"))
        self.assertEqual((session["annotations"], session["sampling"]["temperature"]), ({"color": "blue"}, 0))

        count = int(session["token_count"])
        appended = self.ctl.json("session", "append", "life", "-m", "user:Name a river.", "--expect", count)
        self.assertEqual(int(appended["token_count"]), count + int(appended["appended_token_count"]))
        self.refused("ABORTED", None, "session", "append", "life", "more", "--expect", count)

        start = int(appended["token_count"])
        answer = self.ctl.text("session", "decode", "life", "-n", 12)
        for skipped in range(0, 12, 5):  # from any position, what was made is replayed byte for byte
            replayed = self.ctl.lines("session", "decode", "life", "--start", start + skipped, "-n", 12 - skipped)
            self.assertEqual(replayed[0]["position"], str(start + skipped))
            self.assertTrue(answer.endswith("".join(m["text"] for m in replayed)))
        read = self.ctl.lines("session", "read", "life", "--start", start, "--count", 5)
        self.assertEqual(sum(len(m["token_ids"]) for m in read), 5)
        self.assertTrue(answer.startswith(self.ctl.text("session", "read", "life", "--start", start, "--count", 5)))

        fork = self.ctl.json("session", "fork", "life", "life-2", "--token-count", start)
        self.assertEqual((fork["name"], fork["parent"], fork["token_count"]),
                         ("sessions/life-2", "sessions/life", str(start)))
        self.assertEqual(self.ctl.text("session", "decode", "life-2", "-n", 12, *GREEDY), answer)
        truncated = self.ctl.json("session", "truncate", "sessions/life-2", count)
        self.assertEqual(truncated["token_count"], str(count))

        nowhere = self.refused("FAILED_PRECONDITION", None, "session", "suspend", "life")["message"]
        self.assertRegex(nowhere, "--host-memory.*--disk-dir")
        suspended = self.ctl.json("session", "suspend", "life", "--tier", "absent")
        self.assertEqual(suspended["residency"]["device_tokens"], "0")
        self.ctl.text("session", "prefetch", "life")
        self.assertEqual(self.ctl.text("session", "delete", "life-2"), "deleted")
        self.refused("NOT_FOUND", None, "session", "get", "life-2")

    def test_update_changes_what_is_given(self):
        created = self.ctl.json("session", "create", "changed", "--ttl", "1h", "--top-k", 5)
        updated = self.ctl.json("session", "update", "changed", "--display-name", "New", "--etag", created["etag"])
        self.assertEqual((updated["display_name"], updated["ttl"], updated["sampling"]["top_k"]), ("New", "3600s", 5))
        self.assertNotEqual(updated["etag"], created["etag"])
        self.refused("ABORTED", None, "session", "update", "changed", "--pinned", "--etag", created["etag"])
        updated = self.ctl.json("session", "update", "changed", "--ttl", "never", "--pinned", "--top-p", 0.5)
        self.assertEqual((updated["pinned"], updated["sampling"]["top_p"]), (True, 0.5))
        self.assertNotIn("ttl", updated)
        self.assertFalse(self.ctl.json("session", "update", "changed", "--no-pinned")["pinned"])
        updated = self.ctl.json("session", "update", "changed", "--expire-time", "2100-01-31T12:00:00Z")
        self.assertEqual(updated["expire_time"], "2100-01-31T12:00:00Z")

    def test_list_follows_the_pages(self):
        names = {f"sessions/page-{i}" for i in range(5)}
        for name in names:
            self.ctl.text("session", "create", name.removeprefix("sessions/"))
        page = self.ctl.json("session", "list", "--page-size", 2)
        self.assertEqual(len(page["sessions"]), 2)
        after = self.ctl.json("session", "list", "--page-size", 2, "--page-token", page["next_page_token"])
        self.assertGreater(after["sessions"][0]["name"], page["sessions"][1]["name"])
        rows = self.ctl.text("session", "list").splitlines()
        self.assertEqual(rows[0].split()[:2], ["NAME", "TOKENS"])
        self.assertLessEqual(names, {row.split()[0] for row in rows[1:]})
        self.assertIn("next: --page-token ", self.ctl.text("session", "list", "--page-size", 2))

    def test_cache(self):
        prompt = "A long sentence about the sea, " * 8
        self.ctl.text("generate", prompt, "-n", 1)
        found = self.ctl.json("cache", "lookup", prompt)
        self.assertGreater(int(found["device_tokens"]), 32)
        self.assertLessEqual(int(found["device_tokens"]), int(found["token_count"]))
        self.assertIn(f"device {found['device_tokens']}", self.ctl.text("cache", "lookup", prompt))
        self.assertEqual(self.ctl.json("cache", "lookup", prompt, "--cache-salt", "x")["device_tokens"], "0")
        stats = self.ctl.json("cache", "stats")
        self.assertEqual(stats["tiers"][0]["tier"], "TIER_DEVICE")
        self.assertIn("tier device", self.ctl.text("cache", "stats"))
        self.assertEqual(self.ctl.text("cache", "clear", "--tier", "device"), "cleared")
        self.assertEqual(self.ctl.json("cache", "lookup", prompt)["device_tokens"], "0")

    def test_explain(self):
        def restores():
            return sum(int(r["restore_count"]) for r in self.ctl.json("cache", "stats").get("restores", []))

        self.ctl.text("session", "create", "trip")
        self.refused("FAILED_PRECONDITION", None, "cache", "explain", "trip", "--last")
        self.refused("NOT_FOUND", None, "cache", "explain", "nobody")
        self.ctl.text("session", "decode", "trip", "A long sentence about the sea, " * 8, "-n", 1)
        self.assertIn("execution        none", self.ctl.text("cache", "explain", "trip"))
        computed = int(self.ctl.json("session", "get", "trip")["token_count"]) - 1  # the last one was sampled only
        self.ctl.text("cache", "clear")
        plan = self.ctl.json("cache", "explain", "trip")
        self.assertEqual({(b["tier"], b["verdict"]) for b in plan["blocks"]}, {("TIER_ABSENT", "VERDICT_RECOMPUTE")})
        self.assertNotIn("actual_time", plan)
        end = len(plan["blocks"]) * plan["block_tokens"] - 1
        text = self.ctl.text("cache", "explain", "trip")
        self.assertRegex(text, r"^POSITIONS +TIER +RELOAD/BLOCK +RECOMPUTE/BLOCK +VERDICT\n")
        self.assertRegex(text, rf"(?m)^0\.\.{end} +absent .* recompute$")
        self.assertRegex(text, rf"(?m)^{end + 1}\.\.{computed} +tail +- +- +compute$")
        self.assertEqual((int(plan["token_count"]), int(plan["computed_tokens"])), (computed + 1, computed))
        self.ctl.text("session", "fork", "trip", "longer")
        self.ctl.text("session", "append", "longer", "More of the sea. " * 16)
        self.assertRegex(self.ctl.text("cache", "explain", "longer"), rf"(?m)^{end + 1}\.\.\d+ +new .* compute$")
        before = restores()
        self.ctl.text("session", "decode", "trip", "-n", 1)
        self.assertEqual(restores(), before + 1)
        last = self.ctl.json("cache", "explain", "trip", "--last")
        self.assertIn("actual_time", last)
        self.assertEqual(last["blocks"][0]["verdict"], "VERDICT_RECOMPUTE")
        self.assertRegex(self.ctl.text("cache", "explain", "trip", "--last"), r"(?m)^actual +[\d.]+ ms$")
        self.assertIn("of restores: recompute", self.ctl.text("cache", "stats"))
        times = [float(block["actual_time"].rstrip("s")) for block in last["blocks"]]
        self.assertEqual(times, sorted(times))
        self.assertTrue(0 < times[0] and times[-1] <= float(last["actual_time"].rstrip("s")))
        self.assertRegex(self.ctl.text("cache", "explain", "trip", "--last"),
                         rf"(?m)^0\.\.{end} +absent .* recompute +[\d.]+ ms$")
        predictions = self.ctl.json("cache", "stats")["restore_predictions"]
        self.assertEqual(sum(map(int, predictions["counts"])), restores())
        self.assertEqual(len(predictions["counts"]), len(predictions["upper_bounds"]) + 1)
        self.assertRegex(self.ctl.text("cache", "stats"), r"(?m)^predicted / actual.*\n.* more\nrestores +[-\d ]+$")

    def test_errors_name_code_and_field(self):
        bad = "INVALID_ARGUMENT"
        hello = ["generate", "Hello"]
        for value in (-1, "nan"):
            self.refused(bad, "sampling.temperature", *hello, "--temperature", value, flag="--temperature")
        self.refused(bad, "sampling.stop", *hello, *["--stop", "x"] * 17, flag="--stop")
        self.refused(bad, "sampling.stop_token_ids[0]", *hello, "--stop-token-id", 49152, flag="--stop-token-id")
        self.refused(bad, "session.sampling.top_p", "session", "create", "p", "--top-p", 7, flag="--top-p")
        self.refused(bad, "session.priority", "session", "create", "p", "--priority", 700, flag="--priority")
        self.refused(bad, "content", "generate", flag="--text")
        self.refused(bad, "content.tokens.ids[1]", "generate", "--tokens", "1,49152", flag="--tokens")
        self.refused(bad, "content", "generate", "--tokens", ",".join(["9"] * 9000), flag="--tokens")
        self.assertIn("one of system, user, assistant, tool", self.refused(
            bad, "content.chat.messages[0].role", "tokenize", "-m", "robot:Hi", flag="--message")["message"])
        self.refused(bad, "max_tokens", *hello, "-n", 1000000, flag="--max-tokens")
        self.refused(bad, "ids[1]", "detokenize", "1,49152", flag="<ids>")
        self.refused(bad, "session_id", "session", "create", "Not_An_Id", flag="<id>")
        self.refused(bad, "page_token", "session", "list", "--page-token", "nowhere", flag="--page-token")
        self.refused("NOT_FOUND", None, "session", "decode", "unknown")
        self.refused(bad, "name", "session", "get", "projects/1", flag="<session>")
        self.ctl.text("session", "create", "twice")
        self.refused("ALREADY_EXISTS", None, "session", "create", "twice")

    def test_wrong_usage_says_what_is_expected(self):
        for arguments, words in [(["session", "create", "a", "--ttl", "5x"], "90s, 15m, 2h, 7d or never"),
                                 (["--address", "", "session", "list"], "--address: expected HOST:PORT"),
                                 (["generate", b"--text=a\xff"], "--text: is not UTF-8 from byte 1 on"),
                                 (["generate", "-m", b"user:\xff"], "-m: is not UTF-8 from byte 5 on"),
                                 (["session", "get", b"\xff"], ": is not UTF-8 from byte 0 on"),
                                 (["--text", "no command"], "--text"),
                                 (["session", "update", "a", "--expire-time", "soon"], "2030-01-31T12:00:00Z"),
                                 (["generate", "a", "--tokens", "1"], "not several"),
                                 (["generate", "-m", "no role"], "ROLE:TEXT"),
                                 (["session", "suspend", "a", "--tier", "moon"], "moon"),
                                 (["frobnicate"], "there is no frobnicate"),
                                 (["session", "frobnicate"], "there is no frobnicate"),
                                 (["generate", "a", "--frobnicate"], "frobnicate"),
                                 ([], "subcommand")]:
            done = self.ctl.run(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), arguments)
            self.assertIn(words, done.stderr)
            error, exit_code = self.ctl.error(*arguments)
            self.assertEqual((error["code"], exit_code), ("INVALID_ARGUMENT", 2), arguments)
            self.assertIn(words, error["message"])
        self.assertEqual(self.ctl.run("session", "list", "--page-size", "x", "--json").stderr[0], "{")
        text = self.ctl.run("tokenize", "-", stdin=b"ab\xff")
        self.assertEqual((text.returncode, text.stderr.count("\n")), (2, 1))
        self.assertIn("--text: standard input is not UTF-8 from byte 2 on", text.stderr)

    def test_words_that_are_no_values_are_refused(self):
        """Each names its flag; the nearest word that is one is taken."""
        limit, whole, ids = "315,576,000,000 s", "expected a whole number in ", "as in 1,2,3"
        for words, command, flag, values in [
                (limit, ["session", "update", "a"], "--ttl", ["99999999999d", "3652501d", "nan", "inf", "1e400", "0", "-5s"]),
                ("7d or never", ["session", "update", "a"], "--ttl", ["", "0x5", " 5", "5 s", "s", "Never"]),
                (limit, ["session", "list"], "--timeout", ["1e300", "-5", "nan", "inf"]),
                ("expected seconds", ["session", "list"], "--timeout", ["", "5x"]),
                (limit, ["health"], "--wait", ["1e300", "-5", "nan"]),
                ("expected ID=BIAS", ["generate", "Hi"], "--logit-bias",
                 ["1=x", "1=2x", "x=1", "1x=1", "-1=1", "99999999999=1", "1=", "=1", "1=nan", "1=1e39"]),
                (ids, ["generate"], "--tokens", ["1,,3", "1,", ",1", "", "1x", "-1", "[1,,3]", "4294967296"]),
                (ids, ["session", "decode", "a"], "--tokens", [""]),
                (ids, ["detokenize"], "ids", ["1,,3", "1,", "", "[1,,3]"]),
                (whole, ["generate", "Hi"], "--seed", ["-1", "18446744073709551616"]),
                (whole, ["generate", "Hi"], "--top-k", ["1.5", "0x1"]),
                (whole, ["generate", "Hi"], "--stop-token-id", ["", "1,2"]),
                (whole, ["generate", "Hi"], "--max-tokens", ["4294967296"]),
                (whole, ["generate", "Hi"], "--priority", ["2147483648"]),
                (whole, ["session", "list"], "--page-size", ["1e3"]),
                (whole, ["session", "read", "a"], "--start", ["9223372036854775808"]),
                (whole, ["session", "truncate", "a"], "token-count", ["9223372036854775808"])]:
            for value in values:
                error, exit_code = self.ctl.error(*command, *([flag] if flag.startswith("--") else []), value)
                self.assertEqual((error["code"], exit_code), ("INVALID_ARGUMENT", 2), (flag, value))
                self.assertTrue(error["message"].startswith(flag + ": ") and words in error["message"], error)
        self.assertEqual(self.ctl.run("--timeout", "315576000000", "session", "list").returncode, 0)
        self.assertEqual(self.ctl.run("--timeout", "1m", "session", "list").returncode, 0)
        for ttl, seconds in (("1e-12", "0.000000001s"), ("1.5m", "90s"), ("0.1", "0.100s"), ("3000000000", "3000000000s")):
            self.assertEqual(self.ctl.json("session", "create", "--ttl", ttl)["ttl"], seconds)
        self.assertIn("292 years", self.ctl.error("session", "create", "--ttl", "315576000000")[0]["message"])
        self.assertEqual(self.ctl.text("detokenize", "010"), self.ctl.text("detokenize", "10"))

    def test_an_empty_text_is_one_that_was_given(self):
        self.ctl.text("session", "create", "waits", "--text", "Hello")
        self.refused("INVALID_ARGUMENT", "content.text", "session", "decode", "waits", "", flag="--text")

    def test_lost_output_is_an_error(self):
        self.ctl.text("session", "create", "shown", "--text", "Hello")
        for arguments in (["session", "list"], ["generate", "Hi", "-n", 4], ["--help"], ["--version"],
                          ["session", "read", "shown"]):
            with open("/dev/full", "w") as full:
                done = self.ctl.run(*arguments, stdout=full)
            self.assertEqual((done.returncode, done.stderr),
                             (1, "cairnctl: DATA_LOSS: standard output: No space left on device\n"), arguments)
        with open("/dev/full", "w") as full:
            done = self.ctl.run("--json", "generate", "Hi", "-n", 4, stdout=full)
        self.assertEqual((done.returncode, json.loads(done.stderr)["error"]["code"]), (1, "DATA_LOSS"))

    def test_help_and_version(self):
        for command in [[], ["session"], ["session", "update"], ["generate"], ["chat"], ["cache", "lookup"]]:
            self.assertIn("Usage: ", self.ctl.text(*command, "--help"))
        self.assertIn("Examples:", self.ctl.text("--help"))
        self.assertRegex(self.ctl.text("--version"), r"^cairnctl \d+\.\d+\.\d+$")

    def test_no_server_and_no_time(self):
        nobody = Client(sys.argv[2], "127.0.0.1:1")
        done = nobody.run("session", "list")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertEqual(done.stderr, "cairnctl: UNAVAILABLE: cannot connect to 127.0.0.1:1; is cairnd running there?\n")
        for arguments, words in [(["--address", "nowhere.onion:1"], "no host is known by the name in nowhere.onion:1"),
                                 (["--address", "unix:/nowhere"], "cannot connect to unix:/nowhere")]:
            error, exit_code = self.ctl.error(*arguments, "session", "list")
            self.assertEqual((error["code"], exit_code), ("UNAVAILABLE", 3))
            self.assertTrue(error["message"].startswith(words), error)
        error, exit_code = self.ctl.error("--timeout", 0.001, "generate", "Hello", "-n", 2000, "--ignore-eos")
        self.assertEqual((error["code"], exit_code), ("DEADLINE_EXCEEDED", 3))

    def test_what_a_server_cannot_do_names_the_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server(sys.argv[1], sys.argv[3], "--device-memory", "64MiB", "--restore-policy", "wave", "--disk-dir",
                        folder, "--disk-memory", "1000TiB") as server:
                server.log.seek(0)
                log = server.log.read()
            self.assertRegex(log, r"--restore-policy wave: .* --host-memory .*--host-blocks copied")
            self.assertRegex(log, r"--disk-memory: more than there is room for in .*, which is [\d,]+ MiB; ")
            nowhere = Server(sys.argv[1], sys.argv[3], "--device-memory", "64MiB", "--trace", folder + "/none/trace")
            done = subprocess.run(nowhere.command, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "cairnd: --trace: .*No such file or directory")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
