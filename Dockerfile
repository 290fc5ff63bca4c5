# The streaming service (docs/serve.md) on a CPU, with the composed encoder for images:
#   docker build -t zeroshift .
#   docker run -p 8000:8000 -v streams:/data zeroshift
# A smaller image for clients that send features (no torch): docker build --build-arg EXTRAS=serve -t zeroshift .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=serve,postgres,offline
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_EXTRA_INDEX_URL=${TORCH_INDEX} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
# First everything that it needs, for an empty package: a change of src does not install torch again.
RUN mkdir --parents src/zeroshift/data/bundle \
    && echo '__version__ = "0"' > src/zeroshift/_version.py \
    && touch src/zeroshift/__init__.py src/zeroshift/data/bundle/LICENSES.txt \
    && python -m venv /opt/zeroshift \
    && /opt/zeroshift/bin/pip install --constraint constraints.txt ".[${EXTRAS}]"
COPY src src
RUN /opt/zeroshift/bin/pip install --constraint constraints.txt --no-deps --force-reinstall .

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --create-home --home-dir /data zeroshift
COPY --from=build /opt/zeroshift /opt/zeroshift
ENV PATH=/opt/zeroshift/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ZEROSHIFT_CACHE=/data/cache \
    HF_HOME=/data/hub
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/live')"]
ENTRYPOINT ["zeroshift"]
CMD ["serve", "--store", "/data/streams", "--host", "0.0.0.0"]
