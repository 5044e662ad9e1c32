# The workers: `longread worker ingest` and `longread worker engine --tiers …`. Built from the root of the repository.
FROM python:3.11-slim

# cpu: the pinned CPU engine. gpu: vLLM for NVIDIA GPUs.
ARG ENGINE=cpu
# Another package index, where pip does not find the CPU build of torch by itself (docs/decisions/0002).
ARG LONGREAD_PIP_EXTRA_INDEX=""

# libnuma: the CPU engine links it. g++: both engines compile kernels when they start.
# Versions of Debian packages leave its mirrors at every update, so they are not pinned.
# hadolint ignore=DL3008
RUN case "$ENGINE" in cpu|gpu) ;; *) echo "ENGINE is cpu or gpu, not '$ENGINE'." >&2; exit 1 ;; esac \
    && apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home longread \
    && install --directory --owner longread --group longread /data

WORKDIR /src
COPY docker/requirements docker/requirements
# Before the sources, so that a change of ours does not fetch the engine again. The same steps as `make setup`.
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ "$ENGINE" = cpu ]; then \
        pip install ${LONGREAD_PIP_EXTRA_INDEX:+--extra-index-url "$LONGREAD_PIP_EXTRA_INDEX"} \
            --no-deps --requirement docker/requirements/constraints.txt \
        && pip install ${LONGREAD_PIP_EXTRA_INDEX:+--extra-index-url "$LONGREAD_PIP_EXTRA_INDEX"} \
            --no-deps --require-hashes --requirement docker/requirements/engine-cpu.txt; \
    fi
COPY pyproject.toml README.md ./
COPY service service
COPY workers workers
COPY migrations migrations
# On CPU all is installed already. For GPUs the versions stand in pyproject.toml.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ "$ENGINE" = cpu ]; then pip install --no-deps .; else pip install ".[gpu,ocr]"; fi

COPY docker/worker_health.py /opt/longread/worker_health.py
# XDG_CACHE_HOME: the bundled model lies in the user's cache; in the volume, every container finds it.
ENV PYTHONUNBUFFERED=1 \
    LONGREAD_DATA_DIR=/data \
    XDG_CACHE_HOME=/data/cache
# Not the folder of the sources: the installed packages run, and an optional longread.toml is read from here.
WORKDIR /data
USER 10001:10001
# An engine loads its model before the first beat.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m \
    CMD ["python", "/opt/longread/worker_health.py"]
CMD ["longread", "worker", "ingest"]
