FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements.lock .
RUN python -m venv /opt/toolscout \
 && /opt/toolscout/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY app app
COPY migrations migrations
RUN /opt/toolscout/bin/pip install --no-cache-dir --no-deps .

FROM python:3.13-slim
RUN useradd --system --create-home --home-dir /home/toolscout toolscout
COPY --from=build /opt/toolscout /opt/toolscout
ENV PATH=/opt/toolscout/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOOLSCOUT_ENVIRONMENT=production \
    TOOLSCOUT_HOST=0.0.0.0 \
    TOOLSCOUT_DATA_DIR=/home/toolscout/data
USER toolscout
WORKDIR /home/toolscout
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["toolscout", "serve"]
