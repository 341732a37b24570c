"""Client stubs of the API, made from proto/ as a user of Python makes them."""

import importlib
import subprocess
import sys

SERVICES = ["session_service", "decode_service", "cache_service", "model_service"]


def generate_stubs(proto_folder, to):
    """Modules: messages of common and of each service, then the stubs of each service. `to` is an empty folder."""
    names = ["common", *SERVICES]
    files = [f"cairn/v1/{name}.proto" for name in names]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{proto_folder}", f"--python_out={to}",
                    f"--grpc_python_out={to}", *files], check=True)
    sys.path.insert(0, str(to))
    return [importlib.import_module(f"cairn.v1.{name}_pb2") for name in names] + [
        importlib.import_module(f"cairn.v1.{name}_pb2_grpc") for name in SERVICES]
