# Compiles the programs of both images once:
#   docker build -f docker/binaries.Dockerfile -t rollwright/binaries .
ARG RUST=docker.io/library/rust:1.91-bookworm

FROM ${RUST} AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release -p rollwright-runtime --bin rollwright \
      -p rollwright-agent --bin rollwright-agent
# Process 1 of every sandbox, whatever libraries its image has: static.
RUN cargo rustc --locked --release -p rollwright-init --bin rollwright-init \
      -- -C target-feature=+crt-static
RUN mkdir /out && cd target/release && cp rollwright rollwright-agent rollwright-init /out/ && \
      strip --strip-debug /out/*

FROM scratch
COPY --from=build /out/ /
