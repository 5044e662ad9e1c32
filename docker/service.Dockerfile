# The API, the migrations and the command line. Holds no engine. Built from the root of the repository.
FROM python:3.11-slim

# The worker image has the same user id, because both write to the volume.
RUN useradd --uid 10001 --create-home longread \
    && install --directory --owner longread --group longread /data

WORKDIR /src
COPY docker/requirements docker/requirements
COPY pyproject.toml README.md ./
COPY service service
COPY workers workers
COPY migrations migrations
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint docker/requirements/constraints.txt .

# XDG_CACHE_HOME: the bundled model lies in the user's cache; in the volume, every container finds it.
ENV PYTHONUNBUFFERED=1 \
    LONGREAD_DATA_DIR=/data \
    XDG_CACHE_HOME=/data/cache
# Not the folder of the sources: the installed packages run, and an optional longread.toml is read from here.
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('LONGREAD_HTTP__PORT', '8000') + '/healthz', timeout=4)"]
CMD ["longread", "serve", "--host", "0.0.0.0", "--port", "8000"]
