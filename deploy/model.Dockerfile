# A model in an image, for the init container that puts it on the pod's volume. The context is the folder of the file;
# for the model that `./cairn setup` fetches:
#
#   docker build -f deploy/model.Dockerfile -t cairn-model:0.1.0 .cache/models
#
# Another model: --build-arg MODEL=FILE --build-arg MODEL_SHA256=DIGEST, and the digest in kubernetes/statefulset.yaml.
ARG BASE=debian:12.15-slim
FROM ${BASE}
ARG MODEL=SmolLM2-135M-Instruct.Q4_1.gguf
ARG MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
COPY ${MODEL} /model.gguf
RUN echo "${MODEL_SHA256}  /model.gguf" | sha256sum --check --strict
USER 65532:65532
