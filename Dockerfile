# Graft on a CPU:  docker build -t graft .
#                  docker run --rm -v "$PWD:/work" graft run --dataset digits --clients 5 --rounds 20
# Datasets lie under /data (-v "$HOME/graft-data:/data"), runs under /work; give --user "$(id -u):$(id -g)" where these
# folders are yours alone. Extras of Graft are built in by --build-arg EXTRAS=ray, as compose.yaml does.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/graft/bin:$PATH
RUN python -m venv /opt/graft
WORKDIR /source
# What changes rarely comes first, so that a change of Graft's own code installs nothing anew.
COPY constraints.txt ./
RUN pip install --constraint constraints.txt --extra-index-url "$TORCH_INDEX" torch torch_geometric
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt --extra-index-url "$TORCH_INDEX" ".${EXTRAS:+[$EXTRAS]}" \
    && pip uninstall --yes pip

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="Graft" \
      org.opencontainers.image.description="Graph federated training, on a CPU" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/graft /opt/graft
# Caches lie in /tmp, which everybody may write to: with --user there may be no home.
ENV PATH=/opt/graft/bin:$PATH PYTHONUNBUFFERED=1 GRAFT_DATA=/data XDG_CACHE_HOME=/tmp/cache MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --uid 1000 --create-home graft && install --directory --owner graft --group graft /data /work
USER 1000
WORKDIR /work
RUN graft list methods > /dev/null
ENTRYPOINT ["graft"]
CMD ["--help"]
