"""The manifests of deploy/: valid for Kubernetes, and one with the configuration and with cairnd as it runs.

usage: deploy_test.py CAIRND CAIRNCTL MODEL
"""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import kubernetes_validate
import yaml

from deployment import CONFIG, DEPLOY, ROOT, config, dockerfile, last, manifest, manifests, port_of, quantity
from server_process import Client, Server

SCHEMAS = ["1.30", "1.37"]  # the oldest that knows everything that is used, and the newest
BEYOND_POOLS = 200_000_000  # what cairnd needs beside weights and pools, at most
LAST_MESSAGES_SECONDS = 10  # of streams, after the drain's grace
LABELS = {"app.kubernetes.io/name": "cairn"}


class ManifestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.config = config()
        cls.set = manifest("StatefulSet")["spec"]
        cls.pod = cls.set["template"]["spec"]
        [cls.container] = cls.pod["containers"]
        [cls.init] = cls.pod["initContainers"]
        cls.mounts = {mount["name"]: mount for mount in cls.container["volumeMounts"]}

    def test_valid_for_kubernetes(self):
        for version in SCHEMAS:
            for document in manifests():
                kubernetes_validate.validate(document, version, strict=True)
        wrong = manifest("StatefulSet")
        wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60  # the check can fail
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, SCHEMAS[0], strict=True)

    def test_kustomization_names_every_file(self):
        kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
        there = {str(path.relative_to(DEPLOY)) for path in (DEPLOY / "kubernetes").iterdir()}
        self.assertEqual(set(kustomization["resources"]), there)
        [generated] = kustomization["configMapGenerator"]
        [volume] = [v for v in self.pod["volumes"] if "configMap" in v]
        self.assertEqual((generated["name"], generated["files"]), (volume["configMap"]["name"], [CONFIG.name]))

    def test_selectors_find_the_pods(self):
        self.assertEqual(self.set["template"]["metadata"]["labels"], LABELS)
        self.assertEqual(self.set["selector"]["matchLabels"], LABELS)
        self.assertEqual(manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], LABELS)
        [spread] = self.pod["topologySpreadConstraints"]
        self.assertEqual(spread["labelSelector"]["matchLabels"], LABELS)
        for document in manifests():
            self.assertEqual(document["metadata"]["labels"], LABELS)
            if document["kind"] == "Service":
                self.assertEqual(document["spec"]["selector"], LABELS)
        self.assertEqual(manifest("Service", self.set["serviceName"])["spec"]["clusterIP"], "None")
        self.assertNotIn("clusterIP", manifest("Service")["spec"])

    def test_budget_lets_a_node_be_drained(self):
        self.assertGreater(self.set["replicas"], 1)
        self.assertEqual(manifest("PodDisruptionBudget")["spec"]["maxUnavailable"], 1)

    def test_ports_are_those_of_the_configuration(self):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertEqual(ports, {"grpc": port_of(self.config.listen), "health": port_of(self.config.health_listen)})
        for name in ("cairn", self.set["serviceName"]):
            [port] = manifest("Service", name)["spec"]["ports"]
            self.assertEqual((port["port"], port["targetPort"]), (ports["grpc"], "grpc"))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.container[probe]["grpc"]["port"], ports["health"])
        for address in (self.config.listen, self.config.health_listen):
            self.assertTrue(address.startswith("0.0.0.0:"), "kubelet asks at the pod's address")

    def test_folders_are_those_of_the_configuration(self):
        volumes = {volume["name"] for volume in self.pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in self.set["volumeClaimTemplates"]}
        self.assertEqual(set(self.mounts), volumes | claims)
        [path] = self.container["args"][1:]
        self.assertEqual(self.container["args"][0], "--config")
        self.assertEqual(path, f"{self.mounts['config']['mountPath']}/{CONFIG.name}")
        self.assertEqual(str(pathlib.PurePath(self.config.model).parent), self.mounts["models"]["mountPath"])
        self.assertEqual(str(pathlib.PurePath(self.config.disk_dir).parent), self.mounts["sessions"]["mountPath"],
                         "a volume's root may have files of the file system, and is then not taken for ours")
        self.assertEqual({name for name, mount in self.mounts.items() if not mount.get("readOnly")}, claims)

    def test_claim_holds_the_disk_tier(self):
        [claim] = self.set["volumeClaimTemplates"]
        size = quantity(claim["spec"]["resources"]["requests"]["storage"])
        self.assertGreaterEqual(size, self.config.disk_memory_bytes + (2 << 30))

    def test_memory_holds_weights_and_pools(self):
        resources = self.container["resources"]
        self.assertEqual(resources["requests"], resources["limits"])
        pools = [getattr(self.config, field.name) for field in self.config.DESCRIPTOR.fields
                 if field.name.endswith("_memory_bytes") and field.name != "disk_memory_bytes"]
        self.assertTrue(all(pools), "deploy/cairn.conf sets every pool: one that fits the machine fits no container")
        needed = os.path.getsize(sys.argv[3]) + sum(pools) + BEYOND_POOLS
        self.assertGreaterEqual(quantity(resources["limits"]["memory"]), needed)
        said = int(re.search(r"= ([\d,]+) MB", (DEPLOY / "kubernetes" / "statefulset.yaml").read_text())[1]
                   .replace(",", ""))
        self.assertEqual(said, round(needed / 1e6), "the sum in the comment")

    def test_threads_are_the_processors(self):
        self.assertEqual(str(self.config.threads), self.container["resources"]["limits"]["cpu"])

    def test_nothing_runs_with_more_rights_than_it_needs(self):
        security = self.pod["securityContext"]
        self.assertTrue(security["runAsNonRoot"])
        user = f"{security['runAsUser']}:{security['runAsGroup']}"
        self.assertEqual({last(dockerfile(name), "USER") for name in ("Dockerfile", "model.Dockerfile")}, {user})
        self.assertEqual(security["fsGroup"], security["runAsGroup"])
        self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertFalse(self.pod["automountServiceAccountToken"])
        for container in (self.container, self.init):
            self.assertEqual(container["securityContext"],
                             {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                              "capabilities": {"drop": ["ALL"]}})

    def test_images_are_of_this_version(self):
        [version] = re.findall(r"^project\(cairn VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
        images = [self.container["image"], self.init["image"]]
        self.assertEqual(images, [f"cairn:{version}", f"cairn-model:{version}"])
        for image, name in zip(images, ("Dockerfile", "model.Dockerfile")):
            self.assertIn(f" -t {image} ", (DEPLOY / name).read_text())

    def test_model_is_the_one_that_setup_fetches(self):
        digest = hashlib.sha256(pathlib.Path(sys.argv[3]).read_bytes()).hexdigest()
        self.assertEqual(self.init["env"], [{"name": "MODEL_SHA256", "value": digest}])
        arguments = [arguments for name, arguments in dockerfile("model.Dockerfile") if name == "ARG"]
        self.assertIn(f"MODEL_SHA256={digest}", arguments)
        self.assertIn(f"MODEL={pathlib.Path(sys.argv[3]).name}", arguments)

    def test_init_step_lets_only_the_right_model_through(self):
        with tempfile.TemporaryDirectory() as folder:
            image, volume = pathlib.Path(folder, "image"), pathlib.Path(folder, "volume")
            volume.mkdir()
            shell, flags, script = self.init["command"]
            script = re.sub(r"(?<!models)/model\.gguf", f"{image}", script).replace("/models/", f"{volume}/")
            digest = hashlib.sha256(b"weights").hexdigest()

            def run():
                done = subprocess.run([shell, flags, script], env={"MODEL_SHA256": digest, "PATH": os.environ["PATH"]},
                                      capture_output=True)
                return done.returncode

            model = volume / "model.gguf"
            image.write_bytes(b"something else")
            self.assertNotEqual(run(), 0)
            self.assertFalse(model.exists())
            image.write_bytes(b"weights")
            self.assertEqual((run(), model.read_bytes()), (0, b"weights"))
            model.write_bytes(b"damaged")
            self.assertEqual((run(), model.read_bytes()), (0, b"weights"))
            image.unlink()  # a second start needs it no more
            self.assertEqual((run(), model.read_bytes()), (0, b"weights"))


class ServerTest(unittest.TestCase):
    """cairnd with the sample configuration; only what belongs to the container is somewhere else."""

    def start(self, folder, *flags):
        return Server(sys.argv[1], sys.argv[3], "--config", CONFIG, "--health-listen", "127.0.0.1:0",
                      "--disk-dir", f"{folder}/data", *flags)

    def health_address(self, server):
        [address] = [line.removeprefix("health on ") for line in server.summary if line.startswith("health on ")]
        return address

    def test_the_probes_and_the_image_ask_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder, self.start(folder) as server:
            address = self.health_address(server)
            [container] = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                service = container[probe]["grpc"]["service"]
                self.assertEqual(Client(sys.argv[2], address).text("health", service), "serving")
            command = json.loads(last(dockerfile(), "HEALTHCHECK").split("CMD ", 1)[1])
            self.assertEqual(command[:3], ["cairnctl", "--address", f"127.0.0.1:{port_of(config().health_listen)}"])
            command[0], command[2] = sys.argv[2], address
            self.assertEqual(subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode, 0)
            self.assertEqual(server.stop(), 0)
            self.assertNotEqual(subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode, 0)

    def test_grace_is_longer_than_a_drain(self):
        pod = manifest("StatefulSet")["spec"]["template"]["spec"]
        sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        beyond = pod["terminationGracePeriodSeconds"] - sleep - config().drain_grace_seconds
        self.assertGreater(beyond, LAST_MESSAGES_SECONDS)
        with tempfile.TemporaryDirectory() as folder, self.start(folder, "--drain-grace", "1") as server:
            stream = subprocess.Popen([sys.argv[2], "--address", server.address, "generate", "-n", "7000",
                                       "--ignore-eos", "For ever"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.assertTrue(stream.stdout.read(1))  # it runs, and longer than the grace
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=beyond + 1), 0)
            print(f"down {time.monotonic() - begin:.2f} s after SIGTERM, of which 1 s is the streams' grace")
            stream.stdout.close()
            stream.wait()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
