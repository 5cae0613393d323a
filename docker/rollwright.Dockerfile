# Controllers, queues and gateways: distroless and without root.
#   docker build -f docker/rollwright.Dockerfile -t rollwright docker
ARG BINARIES=rollwright/binaries
ARG BASE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BINARIES} AS binaries

FROM ${BASE}
COPY --from=binaries /rollwright /usr/local/bin/rollwright
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/rollwright"]
