# The agent: root, since it holds Docker's socket and the node's cgroups.
#   docker build -f docker/agent.Dockerfile -t rollwright-agent docker
ARG BINARIES=rollwright/binaries
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BINARIES} AS binaries

FROM ${BASE}
RUN command -v iptables-nft >/dev/null || { \
      apt-get update && apt-get install -y --no-install-recommends iptables && \
      rm -rf /var/lib/apt/lists/*; }
# Both ways to the kernel's packet filter, of which the entrypoint takes Docker's.
RUN for way in nft legacy; do \
      mkdir -p "/usr/local/lib/rollwright/$way" && cd "/usr/local/lib/rollwright/$way" && \
      for family in iptables ip6tables; do \
        ln -s "/usr/sbin/$family-$way" "$family" && \
        ln -s "/usr/sbin/$family-$way-restore" "$family-restore" || exit 1; \
      done || exit 1; \
    done
COPY --from=binaries /rollwright-agent /rollwright-init /usr/local/bin/
COPY agent-entrypoint.sh /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/agent-entrypoint.sh"]
