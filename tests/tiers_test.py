"""KV that outgrows memory and outlives the process, with a real cairnd, the real model and a real disk: sessions come back
from the disk, after SIGTERM, after kill -9, from damaged files, and say what a server says that has room for everything.

Usage: tiers_test.py CAIRND CAIRNCTL MODEL [--cycles N]
"""

import argparse
import pathlib
import random
import signal
import tempfile
import time

from cairnd_test import expect_refusal
from server_process import Client, Server

SMALL = ["--threads", "2", "--device-memory", "16MiB", "--host-memory", "20MiB", "--disk-memory", "256MiB"]
LARGE = ["--threads", "2", "--device-memory", "256MiB"]
SESSIONS = ("a", "b", "c")
CONTEXT = 640  # tokens: 40 blocks, of which the small pools hold 102


def ids(seed, count):
    draw = random.Random(seed)
    return ",".join(str(draw.randrange(1000, 40000)) for _ in range(count))


def turn(client, session, content, count=6):
    """The token ids of a turn, and its usage."""
    tokens = ["--tokens", content] if content else []
    lines = client.lines("session", "decode", session, *tokens, "-n", count, "--temperature", "0", "--ignore-eos")
    return [token for line in lines for token in line.get("token_ids", [])], lines[-1]["usage"]


def first_turns(client):
    said = {}
    for session in SESSIONS:
        client.json("session", "create", session)
        said[session], _ = turn(client, session, ids(session, CONTEXT))
    return said


def later_turns(client, round_name):
    """What every session says next, and where its blocks came from, summed up."""
    said, usages = {}, []
    for session in SESSIONS:
        said[session], usage = turn(client, session, ids(f"{session} {round_name}", 5))
        usages.append(usage)
    return said, {name: sum(int(usage[name]) for usage in usages)
                  for name in ("disk_tokens", "host_tokens", "device_tokens", "recomputed_tokens")}


def reference(cairnd, cairnctl, model, rounds):
    """What a server says that never moves a block."""
    with Server(cairnd, model, *LARGE) as server:
        client = Client(cairnctl, server.address)
        said = [first_turns(client)]
        for name in rounds:
            said.append(later_turns(client, name)[0])
    return said


def segments(data):
    files = sorted((data / "blocks").rglob("*.sst"))
    assert files, f"no segment below {data}"
    return files


def damage(data):
    """One byte of every record's payload, or so: one in every 100,000."""
    for path in segments(data):
        content = bytearray(path.read_bytes())
        for place in range(50_000, len(content) - 100_000, 100_000):
            content[place] ^= 1
        path.write_bytes(content)


def stats(client):
    return client.json("cache", "stats")


def check_life(cairnd, cairnctl, model, data, expected):
    # Whatever has a copy is to come from it, however busy the machine is.
    flags = [*SMALL, "--disk-dir", str(data), "--restore-policy", "load_all"]
    with Server(cairnd, model, *flags) as server:
        client = Client(cairnctl, server.address)
        assert first_turns(client) == expected[0]
        said, found = later_turns(client, "again")
        assert said == expected[1], "what came from the disk says something else"
        assert found["disk_tokens"] > CONTEXT // 2, found
        assert found["recomputed_tokens"] < CONTEXT // 2, found
        for session in SESSIONS:
            client.json("session", "suspend", session, "--tier", "disk")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with Server(cairnd, model, *flags) as server:  # everything had been written
        client = Client(cairnctl, server.address)
        said, found = later_turns(client, "killed")
        assert said == expected[2]
        assert found["disk_tokens"] >= len(SESSIONS) * CONTEXT, found
        assert server.stop() == 0
    with Server(cairnd, model, *flags) as server:  # SIGTERM wrote what was idle
        client = Client(cairnctl, server.address)
        said, found = later_turns(client, "stopped")
        assert said == expected[3]
        assert found["disk_tokens"] >= len(SESSIONS) * CONTEXT, found
        for session in SESSIONS:
            client.json("session", "suspend", session, "--tier", "disk")


def check_damage(cairnd, cairnctl, model, data, expected):
    flags = [*SMALL, "--disk-dir", str(data)]
    damage(data)
    with Server(cairnd, model, *flags) as server:
        client = Client(cairnctl, server.address)
        said, _ = later_turns(client, "damaged")
        assert said == expected[4], "a damaged record was used"
        assert int(stats(client)["blocks_corrupt"]) > 0
        assert client.run("health").returncode == 0
        for session in SESSIONS:
            client.json("session", "suspend", session, "--tier", "disk")
    segments(data)[0].unlink()
    with Server(cairnd, model, *flags) as server:
        client = Client(cairnctl, server.address)
        said, _ = later_turns(client, "deleted")
        assert said == expected[5], "a deleted file changed a token"
        assert client.run("health").returncode == 0


def check_another_model(cairnd, cairnctl, model, data, scratch):
    """The same file with one weight changed finds nothing of the other's."""
    other = scratch / "other.gguf"
    content = bytearray(pathlib.Path(model).read_bytes())
    content[len(content) // 2] ^= 1
    other.write_bytes(content)
    with Server(cairnd, other, *SMALL, "--disk-dir", str(data)) as server:
        client = Client(cairnctl, server.address)
        _, usage = turn(client, "a", ids("a stranger", 5))
        assert int(usage["disk_tokens"]) == 0, usage
        assert int(usage["recomputed_tokens"]) > CONTEXT, usage
        assert int(stats(client)["segments_foreign"]) > 0, stats(client)


def first_token_seconds(programs, data, policy):
    """Until the first token of a session that comes back from a disk of 50 MB/s, the middle one of three times."""
    cairnd, cairnctl, model = programs
    flags = ["--threads", "2", "--device-memory", "64MiB", "--disk-memory", "256MiB", "--disk-dir", str(data),
             "--disk-bandwidth-limit", "47MiB/s", "--restore-policy", policy]
    seconds = []
    with Server(cairnd, model, *flags) as server:
        client = Client(cairnctl, server.address)
        if policy == "cairn":  # the first of the two
            client.json("session", "create", "a")
            turn(client, "a", ids("a", CONTEXT), 2)
        for number in range(3):
            client.json("session", "suspend", "a", "--tier", "disk")
            _, usage = turn(client, "a", ids(f"{policy} {number}", 5), 2)
            seconds.append(float(usage["first_token_time"].rstrip("s")))
        assert server.stop() == 0
    return sorted(seconds)[1]


def check_slow_disk(programs, data):
    """A block that lies on a slow disk never makes a session come back later than if it had not been there."""
    planned = first_token_seconds(programs, data, "cairn")
    recomputed = first_token_seconds(programs, data, "recompute_all")
    print(f"a disk of 50 MB/s: first token after {planned:.2f} s, {planned / recomputed:.2f} of computing everything again")
    assert planned <= 1.1 * recomputed, (planned, recomputed)


def check_cycles(cairnd, cairnctl, model, scratch, cycles):
    """Sessions that come and go leave nothing: no block, no record, no file, and no memory that grows."""
    data = scratch / "cycles"
    with Server(cairnd, model, *SMALL, "--disk-dir", str(data)) as server:
        client = Client(cairnctl, server.address)
        resident = []
        for cycle in range(cycles):
            name = f"cycle-{cycle}"
            client.json("session", "create", name)
            client.json("session", "append", name, "--tokens", ids(cycle, 150))
            turn(client, name, "", 2)
            if cycle % 5 == 0:
                client.json("session", "suspend", name, "--tier", "disk")
            client.text("session", "delete", name)
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            resident.append(int(status.split("VmRSS:")[1].split()[0]))
        deadline = time.monotonic() + 30  # dead segments go as somebody looks
        while True:
            tiers = {tier["tier"]: tier for tier in stats(client)["tiers"]}
            left = {name: int(tier["used_blocks"]) for name, tier in tiers.items()}
            files = list((data / "blocks").rglob("*.sst"))
            if not any(left.values()) and not files:
                break
            assert time.monotonic() < deadline, f"left: {left}, {files}"
            time.sleep(0.2)
        growth = max(resident[len(resident) // 2:]) - max(resident[:len(resident) // 2])
        assert growth < 16 * 1024, f"{growth} KiB more in the second half"


def check_refusals(cairnd, scratch):
    expect_refusal(cairnd, "--host-memory", "1TiB", says=["--host-memory", "this process may have"])
    expect_refusal(cairnd, "--device-memory", "1TiB", says=["--device-memory", "this process may have"])
    expect_refusal(cairnd, "--host-memory", "-1", says=["--host-memory"])
    expect_refusal(cairnd, "--host-memory", "100KiB", says=["--host-memory", "1MiB"])
    expect_refusal(cairnd, "--disk-memory", "1GiB", says=["--disk-memory", "--disk-dir"])
    expect_refusal(cairnd, "--disk-bandwidth-limit", "1MiB/s", says=["--disk-bandwidth-limit", "--disk-dir"])
    expect_refusal(cairnd, "--host-bandwidth-limit", "1MiB/s", says=["--host-bandwidth-limit", "--host-memory"])
    expect_refusal(cairnd, "--disk-dir", str(scratch / "d"), "--disk-memory", "16KiB", says=["--disk-memory", "16MiB"])
    expect_refusal(cairnd, "--host-blocks", "somehow", says=["--host-blocks", "in-place"])
    expect_refusal(cairnd, "--host-pages", "glued", says=["--host-pages", "swappable"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cairnd")
    parser.add_argument("cairnctl")
    parser.add_argument("model")
    parser.add_argument("--cycles", type=int, default=40)
    options = parser.parse_args()
    programs = (options.cairnd, options.cairnctl, options.model)
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on a disk, as /tmp may not be
        scratch = pathlib.Path(folder).resolve()
        if options.cycles <= 100:
            rounds = ["again", "killed", "stopped", "damaged", "deleted"]
            expected = reference(*programs, rounds)
            check_life(*programs, scratch / "data", expected)
            check_damage(*programs, scratch / "data", expected)
            check_another_model(*programs, scratch / "data", scratch)
            check_refusals(options.cairnd, scratch)
            check_slow_disk(programs, scratch / "slow")
        check_cycles(*programs, scratch, options.cycles)


if __name__ == "__main__":
    main()
