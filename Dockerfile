# The broker as an image: `docker build -t siltstone .`, then `docker compose up`.
# The first stage compiles the wheel; the second has the wheel, its dependencies and nothing else.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
# A compiler for the hot modules; python:*-slim has the headers of Python.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml setup.py requirements.lock README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir dist .
# The versions of the lock, without its hashes: the wheel of this clone has none.
RUN sed -e '/--hash/d' -e 's/ \\$//' requirements.lock > constraints.txt \
    && python -m venv /opt/siltstone \
    && /opt/siltstone/bin/pip install --no-cache-dir --constraint constraints.txt \
        dist/siltstone-*.whl \
    && /opt/siltstone/bin/siltstone --version

FROM python:${PYTHON}-slim-bookworm
RUN useradd --system --uid 1883 --home-dir /var/lib/siltstone siltstone \
    && install --directory --owner siltstone --group siltstone --mode 0700 /var/lib/siltstone \
    && install --directory --owner siltstone --group siltstone --mode 0755 /run/siltstone
COPY --from=build /opt/siltstone /opt/siltstone
COPY packaging/container.toml /etc/siltstone/siltstone.toml
ENV PATH=/opt/siltstone/bin:$PATH
USER siltstone
WORKDIR /var/lib/siltstone
VOLUME /var/lib/siltstone
EXPOSE 1883
# A client connects, sends a request and waits for the answer. It needs neither a user nor rights.
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 \
    CMD ["siltstone", "sub", "--unix", "/run/siltstone/health.sock", "--unsubscribe", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["siltstone"]
CMD ["serve", "--config", "/etc/siltstone/siltstone.toml"]
