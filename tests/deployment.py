"""What lies in deploy/, read: the manifests, the configuration, the Dockerfiles."""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml
from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.descriptor_pool import DescriptorPool

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CONFIG = DEPLOY / "cairn.conf"


def manifests():
    """Every object of every manifest."""
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def manifest(kind, name="cairn"):
    [found] = [m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def config():
    """deploy/cairn.conf as the message that cairnd reads it into; an unknown field or a wrong type is an error."""
    with tempfile.TemporaryDirectory() as folder:
        descriptors = pathlib.Path(folder) / "descriptors"
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", f"-o{descriptors}",
                        ROOT / "proto" / "cairn" / "v1" / "config.proto"], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("cairn.v1.ServerConfig"))()
    return text_format.Parse(CONFIG.read_text(), message)


def quantity(text):
    """A Kubernetes quantity of bytes."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text).groups()
    return int(number) << {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[unit]


def port_of(address):
    return int(address.rpartition(":")[2])


def dockerfile(name="Dockerfile"):
    """(instruction, arguments) of each line, comments gone and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / name).read_text(), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], " ".join(line.split(None, 1)[1].split())) for line in lines if line.strip()]


def last(instructions, name):
    return [arguments for instruction, arguments in instructions if instruction == name][-1]
