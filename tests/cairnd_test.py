"""cairnd as a process: bad configuration, bad models, a port in use, start lines, SIGTERM.

Usage: cairnd_test.py CAIRND CAIRNCTL MODEL
"""

import ctypes
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from server_process import Client, Server


def run(cairnd, *flags, cwd=None):
    return subprocess.run([cairnd, *map(str, flags)], capture_output=True, text=True, timeout=60, cwd=cwd)


def expect_refusal(cairnd, *flags, says):
    """Exit code 1 and one line on stderr that has every word of `says`."""
    done = run(cairnd, *flags)
    assert done.returncode == 1, f"{flags}: exit code {done.returncode}"
    assert done.stdout == "", f"{flags}: {done.stdout}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1, f"{flags}: {done.stderr}"
    for word in says:
        assert word in lines[0], f"{flags}: {word!r} is not in {lines[0]!r}"


def check_configuration(cairnd, model, scratch):
    expect_refusal(cairnd, "--modle", model, says=["--modle"])
    expect_refusal(cairnd, "--threads", "many", says=["--threads", "many"])
    expect_refusal(cairnd, "--max-concurrent", 0, says=["--max-concurrent", "1..1024", "0"])
    expect_refusal(cairnd, "--listen", "nowhere", says=["--listen", "HOST:PORT", "nowhere"])
    expect_refusal(cairnd, "--health-listen", "nowhere", says=["--health-listen", "HOST:PORT", "nowhere"])
    expect_refusal(cairnd, "--model", model, "--instruction-set", "z80", says=["instruction", "z80"])
    expect_refusal(cairnd, "--model", model, "--backend", "abacus", says=["--backend", "abacus"])
    config = scratch / "cairn.conf"
    config.write_text("threads: 2\nthraeds: 2\n")
    expect_refusal(cairnd, "--config", config, says=[f"{config}:2:", "thraeds"])
    assert run(cairnd, "--help").returncode == 0
    assert re.fullmatch(r"cairnd [0-9.]+\n", run(cairnd, "--version").stdout)


def check_models(cairnd, model, scratch):
    expect_refusal(cairnd, "--model", scratch / "missing.gguf", says=["missing.gguf", "No such file"])
    expect_refusal(cairnd, "--model", scratch, says=[str(scratch), "directory"])
    empty = scratch / "empty.gguf"
    empty.touch()
    expect_refusal(cairnd, "--model", empty, says=["empty.gguf"])
    text = scratch / "text.gguf"
    text.write_text("this is not a model\n" * 100)
    expect_refusal(cairnd, "--model", text, says=["text.gguf"])
    cut = scratch / "cut.gguf"
    with open(model, "rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    expect_refusal(cairnd, "--model", cut, says=["cut.gguf"])


def check_port_in_use(cairnd):
    """It is said before anything is read: there is no such model."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (["--listen", address], ["--listen", "127.0.0.1:0", "--health-listen", address]):
            expect_refusal(cairnd, "--model", "/nowhere.gguf", *flags, says=[flags[-2], address, "in use"])
    expect_refusal(cairnd, "--model", "/nowhere.gguf", "--listen", "192.0.2.1:50051",
                   says=["--listen", "192.0.2.1:50051"])


def check_start_lines(cairnd, model):
    begin = time.monotonic()
    with Server(cairnd, model, "--device-memory", "64MiB") as server:
        print(f"ready after {time.monotonic() - begin:.2f} s")
        assert len(server.summary) <= 10, server.summary
        text = "\n".join(server.summary)
        assert re.search(r"^backend  (cpu|cuda): \S", text, re.M), text
        # KV bytes a token with the formula's factors, and the tokens that the device tier holds.
        assert re.search(r"23,040 .* 2 .* 30 .* 3 .* 64 .* 2 ", text), text
        assert re.search(r"2,912 tokens", text), text  # 64 MiB / 368,640 bytes a block of 16
        assert server.stop() == 0


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


def check_backends(cairnd, model, scratch):
    """The program needs nothing of CUDA's; what lacks for the CUDA backend is one line, and auto goes on without."""
    libraries = subprocess.run(["ldd", cairnd], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "libstdc++" in libraries and not re.search("cuda|cublas|nvidia", libraries), libraries
    if (pathlib.Path(cairnd).parent / "libcairn_cuda.so").exists() and not has_driver():
        expect_refusal(cairnd, "--model", model, "--backend", "cuda", says=["no NVIDIA driver", "libcuda.so.1"])
    alone = scratch / "alone"  # where no plugin lies beside it
    alone.mkdir()
    program = shutil.copy(cairnd, alone)
    expect_refusal(program, "--model", model, "--backend", "cuda", says=[f"no CUDA plugin: there is no {alone}"])
    with Server(program, model, "--device-memory", "64MiB") as server:
        assert f"backend  cpu: this build has no CUDA plugin: there is no {alone}/libcairn_cuda.so" in server.summary
        assert server.stop() == 0
    with Server(program, model, "--device-memory", "64MiB", "--backend", "cpu") as server:
        assert "backend  cpu: asked for" in server.summary, server.summary
        assert server.stop() == 0


def check_calibration(cairnd, model, scratch):
    """What passes cost is measured by the first start, found by the next, and measured again when asked for."""
    link = scratch / "model.gguf"
    link.symlink_to(model)
    kept = scratch / "model.gguf.calibration"

    def start(*flags):
        with Server(cairnd, link, "--device-memory", "64MiB", *flags) as server:
            assert re.search(r"compute .*prefill [0-9,]+ tokens/s", "\n".join(server.summary)), server.summary
            assert server.stop() == 0
        return kept.read_text()

    first = start()
    assert start() == first
    assert any(start("--recalibrate") != first for _ in range(5))  # what makes no sense is not kept


def check_memory(cairnd, cairnctl, model):
    """What is resident is the weights once, the pool, and not much else, also when the pool has been full."""
    pool = 64 << 20
    with Server(cairnd, model, "--device-memory", "64MiB", "--context-length", "2048") as server:
        client = Client(cairnctl, server.address)
        for word in ("river", "stone", "cloud"):  # 1,800 tokens each; the pool holds 2,912
            client.text("generate", "-n", 8, "--temperature", 0, f"{word} " * 1800)
        assert int(client.json("cache", "stats")["tiers"][0]["evictions"]) > 0
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10
        beyond = resident - pathlib.Path(model).stat().st_size - pool
        print(f"{resident / 1e6:.0f} MB resident, {beyond / 1e6:.0f} MB beyond weights and pool")
        assert beyond <= 150e6


def start_long_stream(server, cairnctl, max_tokens):
    return subprocess.Popen([cairnctl, "--address", server.address, "generate", "--max-tokens", str(max_tokens),
                             "--temperature", "0", "--ignore-eos", "Once upon a time"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def check_drain(cairnd, cairnctl, model):
    with Server(cairnd, model, "--device-memory", "64MiB", "--drain-grace", "60") as server:
        stream = start_long_stream(server, cairnctl, 100)
        assert stream.stdout.read(1)  # it runs
        server.process.send_signal(signal.SIGTERM)
        refused, code = Client(cairnctl, server.address).error("generate", "too late")
        assert code != 0 and refused["code"] == "UNAVAILABLE", refused
        assert stream.wait(timeout=60) == 0, stream.stderr.read()
        assert server.process.wait(timeout=60) == 0

    with Server(cairnd, model, "--device-memory", "64MiB", "--drain-grace", "0") as server:
        stream = start_long_stream(server, cairnctl, 2000)
        assert stream.stdout.read(1)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 0
        assert stream.wait(timeout=60) != 0

    with Server(cairnd, model, "--device-memory", "64MiB", "--drain-grace", "600") as server:
        stream = start_long_stream(server, cairnctl, 2000)
        assert stream.stdout.read(1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None  # waits for the stream
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=5) == -signal.SIGTERM
        stream.kill()
        stream.wait()


def main(cairnd, cairnctl, model):
    with tempfile.TemporaryDirectory() as folder:
        check_configuration(cairnd, model, pathlib.Path(folder))
        check_models(cairnd, model, pathlib.Path(folder))
        check_calibration(cairnd, model, pathlib.Path(folder))
        check_backends(cairnd, model, pathlib.Path(folder))
    check_port_in_use(cairnd)
    check_start_lines(cairnd, model)
    check_memory(cairnd, cairnctl, model)
    check_drain(cairnd, cairnctl, model)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
