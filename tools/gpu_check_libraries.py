"""Programs of tools/gpu_check.py on a machine that did not build them: which libraries travel, and where CUDA's are found."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ["tests/tiny_model_tool", "tests/on_device/cuda_conformance_on_device", "tests/on_device/cuda_engine_on_device",
            "tests/on_device/cuda_bench", "tests/on_device/cuda_engine_bench", "tests/on_device/cuda_restore_bench",
            "tests/on_device/cuda_step_bench"]
SCRIPTS = ["gpu_check.sh", "gpu_check.py", "gpu_check_figures.py", "gpu_check_libraries.py"]
# Of the system, or of CUDA: every machine has its own.
OWN = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcublas(Lt)?|libcuda)\.so")
CUDA_FOLDERS = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib",
                "/usr/local/cuda-*/lib64"]
CUDA_PROGRAMS = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]


def libraries_of(program):
    """(name, path) of everything that the loader finds for it."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\s*(\S+) => (/\S+)", output, re.M)


def pack(build, folder):
    """Gathers programs, libraries and this script in `folder`, laid out as a build is."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        to = folder / program
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", to, build / program], check=True)
        for name, path in libraries_of(build / program):
            if not OWN.match(name):
                shutil.copy(path, folder / "lib" / name)
    (folder / "tools").mkdir(exist_ok=True)
    for script in SCRIPTS:
        shutil.copy(ROOT / "tools" / script, folder / "tools" / script)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.0f} MB; there: tools/gpu_check.sh --no-build --build .")
    return 0


def cublas_folders():
    """Where a cuBLAS may lie that the loader does not know: in toolkits, and in Python's packages."""
    packages = [f"{path}/nvidia/*/lib" for path in sys.path + glob.glob("/opt/*/.venv/lib/python3*/site-packages")]
    found = [path for pattern in CUDA_FOLDERS + packages for path in sorted(glob.glob(pattern))]
    return [path for path in found if glob.glob(f"{path}/libcublas.so.*")]


def environment(build):
    """Of the programs: the libraries that were packed with them first, then CUDA's; and where CUDA's own programs are."""
    folders = [str(build / "lib")] if (build / "lib").is_dir() else []
    known = os.environ.get("LD_LIBRARY_PATH")
    folders += ([known] if known else []) + cublas_folders()
    path = ":".join([os.environ.get("PATH", "/usr/bin:/bin"), *CUDA_PROGRAMS])
    return dict(os.environ) | {"PATH": path} | ({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})
