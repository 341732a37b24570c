"""cairnctl plan-restore: line by line, without a server, and against plans that are all tried here.

usage: plan_restore_test.py CAIRNCTL
"""

import itertools
import json
import random
import subprocess
import sys
import unittest

EXAMPLE = {
    "block_tokens": 16, "block_bytes": 368640, "layers": 30, "new_tokens": 32, "pass_s": 0.0002, "sweep_s": 0.004,
    "per_token_s": 0.0007, "per_token_position_s": 1e-7, "chunk_tokens": 512,
    "channels": {"h": {"latency_s": 0, "per_copy_s": 2e-6, "bytes_per_s": 8e9},
                 "d": {"latency_s": 1e-4, "per_copy_s": 1e-5, "bytes_per_s": 4e7, "then": "h"}},
    "blocks": "..hhdd-dh"}


def plans(lines):
    """The answers to these lines, as text."""
    done = subprocess.run([sys.argv[1], "plan-restore"], input="".join(line + "\n" for line in lines),
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


def pass_s(p, positions):
    if not positions:
        return 0.0
    return (p["pass_s"] + max(p["sweep_s"], len(positions) * p["per_token_s"]) +
            p["per_token_position_s"] * sum(positions))


def positions_of(p, blocks):
    size = p["block_tokens"]
    return [b * size + t for b in blocks for t in range(size)]


def loaded_s(p, loaded):
    """When these blocks are there."""
    crossing = dict.fromkeys(p["channels"], 0)
    for block in loaded:
        channel = p["blocks"][block]
        while channel is not None:
            crossing[channel] += 1
            channel = p["channels"][channel].get("then")
    return max([0.0] + [c["latency_s"] + n * (c["per_copy_s"] + p["block_bytes"] / c["bytes_per_s"])
                        for c, n in ((p["channels"][k], n) for k, n in crossing.items()) if n])


def front_s(p, recomputed, loaded):
    per_pass = p["chunk_tokens"] // p["block_tokens"]
    clock = 0.0
    for begin in range(0, len(recomputed), per_pass):
        chunk = recomputed[begin:begin + per_pass]
        ready = loaded_s(p, [b for b in loaded if b < chunk[-1]])
        clock = max(clock, ready) + pass_s(p, positions_of(p, chunk))
    return max(clock, loaded_s(p, loaded)) + pass_s(p, new_positions(p))


def wave_s(p, recomputed, loaded):
    load = loaded_s(p, loaded) / p["layers"]
    compute = pass_s(p, positions_of(p, recomputed) + new_positions(p)) / p["layers"]
    return load + compute + (p["layers"] - 1) * max(load, compute)


def new_positions(p):
    begin = len(p["blocks"]) * p["block_tokens"]
    return list(range(begin, begin + p["new_tokens"]))


def random_problem(rng):
    scale = 10 ** rng.uniform(-6, -2)
    channels = {}
    for name in "hdr"[:rng.randint(1, 3)]:
        channels[name] = {"latency_s": rng.choice([0, 20 * scale * rng.random()]), "per_copy_s": 0,
                          "bytes_per_s": 1000 / (scale * 10 ** rng.uniform(-1, 3))}
        if len(channels) > 1 and rng.random() < 0.5:
            channels[name]["then"] = "h"
    size = rng.choice([1, 4, 16])
    return {"block_tokens": size, "block_bytes": 1000, "layers": rng.randint(1, 40),
            "new_tokens": rng.randint(1, 40), "pass_s": rng.choice([0, 30 * scale * rng.random()]),
            "sweep_s": rng.choice([0, 100 * scale * rng.random()]), "per_token_s": scale,
            "per_token_position_s": scale * 10 ** rng.uniform(-4, -1), "chunk_tokens": size * rng.randint(1, 6),
            "channels": channels,
            "blocks": "".join(rng.choice(".-" + 4 * "".join(channels)) for _ in range(rng.randint(1, 8)))}


class PlanRestoreTest(unittest.TestCase):
    def test_each_line_has_its_answer_at_once(self):
        process = subprocess.Popen([sys.argv[1], "plan-restore"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True)
        for line, key in [(json.dumps(EXAMPLE), "execution"), ("{", "error"), (json.dumps(EXAMPLE), "predicted_s")]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            self.assertIn(key, json.loads(process.stdout.readline()))  # before anything else is asked
        process.stdin.write(json.dumps(EXAMPLE))  # the last line may lack its end
        process.stdin.close()
        self.assertIn("execution", json.loads(process.stdout.readline()))
        self.assertEqual(process.stdout.read(), "")
        self.assertEqual(process.wait(timeout=60), 0)
        process.stdout.close()

    def test_the_example(self):
        [answer] = map(json.loads, plans([json.dumps(EXAMPLE)]))
        self.assertEqual(list(answer), ["execution", "recompute", "load_order", "predicted_s", "load_all_s",
                                        "recompute_all_s"])
        self.assertEqual((answer["execution"], answer["recompute"]), ("wave", [6]))
        self.assertEqual(answer["load_order"], {"h": [2, 3, 8], "d": [4, 5, 7]})
        self.assertAlmostEqual(answer["predicted_s"], wave_s(EXAMPLE, [6], [2, 3, 4, 5, 7, 8]), delta=1e-12)

    def test_errors_name_the_field_and_the_next_line_is_answered(self):
        def changed(**fields):
            return json.dumps(EXAMPLE | fields)
        wrong = {"block_tokens": changed(block_tokens=-1), "blocks[1]": changed(blocks=".q"),
                 "surprise": changed(surprise=1), "new_tokens": changed(new_tokens=1e18), "line": "[]",
                 "channels": changed(channels=[]), "channels.h.then": changed(
                     channels={"h": EXAMPLE["channels"]["h"] | {"then": "x"}}, blocks="h")}
        lines = [line for text in wrong.values() for line in (text, json.dumps(EXAMPLE))]
        answers = [json.loads(answer) for answer in plans(lines)]
        self.assertEqual(len(answers), len(lines))
        for field, error, plan in zip(wrong, answers[::2], answers[1::2], strict=True):
            self.assertEqual(list(error), ["error"])
            self.assertTrue(error["error"].startswith(field + ": "), error)
            self.assertIn("execution", plan)

    def test_no_plan_is_better(self):
        rng = random.Random(1)
        problems = [random_problem(rng) for _ in range(300)]
        for problem, text in zip(problems, plans(map(json.dumps, problems)), strict=True):
            answer = json.loads(text)
            loadable = [b for b, where in enumerate(problem["blocks"]) if where not in ".-"]
            absent = [b for b, where in enumerate(problem["blocks"]) if where == "-"]
            best = float("inf")
            for count in range(len(loadable) + 1):
                for chosen in itertools.combinations(loadable, count):
                    recomputed = sorted(absent + list(chosen))
                    loaded = [b for b in loadable if b not in chosen]
                    best = min(best, front_s(problem, recomputed, loaded), wave_s(problem, recomputed, loaded))
            loaded = sorted(b for order in answer["load_order"].values() for b in order)
            self.assertEqual(sorted(answer["recompute"] + loaded), sorted(absent + loadable))
            simulate = wave_s if answer["execution"] == "wave" else front_s
            self.assertAlmostEqual(simulate(problem, answer["recompute"], loaded) / answer["predicted_s"], 1, 9)
            self.assertLessEqual(answer["predicted_s"], best * (1 + 1e-9), (problem, answer))
            self.assertAlmostEqual(front_s(problem, absent, loadable) / answer["load_all_s"], 1, 9)
            self.assertAlmostEqual(front_s(problem, sorted(absent + loadable), []) / answer["recompute_all_s"], 1, 9)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
