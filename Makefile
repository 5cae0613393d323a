# Rollwright. `make help` lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Rust from rustup is found even where the login shell did not set the PATH.
export PATH := $(HOME)/.cargo/bin:$(PATH)

# Release speed without the link-time pass.
PROFILE := quick
BIN := target/$(PROFILE)
# The helper inside sandboxes; end-to-end tests and benchmarks use this static build too.
export ROLLWRIGHT_INIT := $(CURDIR)/$(BIN)/rollwright-init
# The same random cases in every run, so that a failure is a change's; `make soak` draws others.
export PROPTEST_RNG_SEED ?= 1
# An error says its causes; only a panic needs the stack.
export RUST_LIB_BACKTRACE ?= 0
AS_ROOT := . scripts/lib.sh; as_root

# The tests that touch cgroups and Docker run as root; the build never does.
ifneq ($(shell id -u),0)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := $(CURDIR)/scripts/run-as-root.sh
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := $(CURDIR)/scripts/run-as-root.sh
endif

##@ Use it
.PHONY: quickstart
quickstart: build image ## Run real rollouts, CPU per action beside cores for life (ENGINE_URL=... for a real model)
	@mkdir -p target/quickstart
	@set -e; python=$$(examples/quickstart/agent/venv.sh); $(AS_ROOT) $(BIN)/rollwright-quickstart \
	  --python "$$python" $(if $(ENGINE_URL),--engine-url "$(ENGINE_URL)") $(QUICKSTART_ARGS)

.PHONY: train-tiny
train-tiny: build engine ## Train a tiny policy through the real gateway until it learns; writes a plot
	@examples/grpo-tiny/run.sh $(TRAIN_ARGS)

.PHONY: build
build: deps-build ## Build the binaries and the static helper of sandboxes (target/quick)
	cargo build --locked --profile $(PROFILE) --workspace --bins
	cargo rustc --locked --profile $(PROFILE) -p rollwright-init --bin rollwright-init -- -C target-feature=+crt-static

.PHONY: image
image: engine ## Make the sandbox images locally (cached in ~/.cache/rollwright)
	@scripts/busybox-image.sh
	@examples/quickstart/image.sh

.PHONY: engine
engine: deps-run ## Start a Docker engine when none answers
	@scripts/docker-engine.sh start

.PHONY: cluster
cluster: deps-cluster ## Open a shell in a Kubernetes cluster of this machine's own; it ends with the shell
	cargo build --locked -p rollwright-e2e-kubernetes --bins
	@$(AS_ROOT) target/debug/rollwright-cluster shell $(CLUSTER_COMMAND)

.PHONY: clean-sandboxes
clean-sandboxes: ## Remove sandboxes that a killed run left behind
	@scripts/clean-sandboxes.sh

##@ Work on it
.PHONY: test
test: deps-test init test-images ## Run all tests, on a real Docker engine and a real Kubernetes too (installs what is missing)
	cargo build --locked --workspace --bins
	cargo test --locked --workspace --exclude rollwright-e2e-kubernetes --no-fail-fast
	ROLLWRIGHT_REQUIRE_QUEUE=1 clients/python/scripts/test.sh -q
	"$$(e2e/reward-server/python.sh)" -m unittest discover -s e2e/reward-server/tests
	ROLLWRIGHT_BIN=$(CURDIR)/target/debug/rollwright examples/grpo-tiny/run.sh --steps 35 --out $(CURDIR)/target/grpo-tiny-test
	e2e/cgroup-v2/run.sh
	$(MAKE) test-kubernetes

.PHONY: soak
soak: deps-build ## Run the property tests on many fresh random cases (PROPTEST_CASES=...)
	PROPTEST_RNG_SEED=$$RANDOM PROPTEST_CASES=$${PROPTEST_CASES:-5000} cargo test --locked -p rollwright-core --lib

.PHONY: test-kubernetes
test-kubernetes: deps-cluster cluster-binaries init engine ## Run the tests on a real Kubernetes alone
	cargo build --locked --workspace --bins
	cargo test --locked -p rollwright-e2e-kubernetes --no-fail-fast

.PHONY: cluster-binaries
cluster-binaries: deps-cluster ## Build the programs of a Kubernetes cluster (once, cached in ~/.cache/rollwright)
	@e2e/kubernetes/binaries.sh >/dev/null

.PHONY: bench
bench: build image test-images ## Print the benchmark figures, baselines in the same run
	@set -e; python=$$(examples/quickstart/agent/venv.sh); $(AS_ROOT) $(BIN)/bench --python "$$python" $(BENCH_ARGS)
	@$(if $(strip $(BENCH_ARGS)),,$(MAKE) bench-planner bench-simulator)

.PHONY: bench-gpu
bench-gpu: ## Print the figures of reward services on GPUs (BENCH_ARGS=--fake without one)
	@e2e/gpu/bench.sh $(BENCH_ARGS)

.PHONY: bench-gateway
bench-gateway: deps-build ## Print what the gateway costs beside nginx, haproxy and other routers
	cargo build --locked --profile $(PROFILE) -p rollwright-runtime --bin rollwright
	@e2e/gateway-bench/run.sh $(BENCH_ARGS)

.PHONY: bench-planner
bench-planner: deps-build ## Print what plans cost, beside the papers' own algorithms
	cargo bench --locked --profile $(PROFILE) -p rollwright-core --bench planner

.PHONY: bench-simulator
bench-simulator: deps-build ## Print what the elastic policy reaches at ten simulated loads, and what a million actions cost
	cargo bench --locked --profile $(PROFILE) -p rollwright-sim --bench loads --bench million

.PHONY: bench-scale
bench-scale: deps-cluster cluster-binaries ## Print how the controllers do with 1,000 fake nodes, 500 jobs and 4,000 workers
	cargo build --locked --profile $(PROFILE) -p rollwright-runtime -p rollwright-e2e-kubernetes --bins
	@set -e; kwok=$$(e2e/kubernetes/binaries.sh kwok); $(AS_ROOT) $(BIN)/rollwright-scale \
	  --kwok $$kwok/kwok --rollwright $(BIN)/rollwright $(BENCH_ARGS)

.PHONY: verify
verify: deps-build ## Check format, lints, dependencies, chart, alerts and generated files; only reads
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/check-dependency-docs.sh
	scripts/cargo-deny.sh --locked check bans licenses sources
	cargo run --locked -q -p rollwright-crds --bin crdgen -- --check manifests/crds
	cargo run --locked -q -p rollwright-crds --bin crdgen -- --check helm/rollwright/files/crds
	scripts/verify-chart.sh
	scripts/verify-observability.sh

.PHONY: fix
fix: deps-build ## Format, apply lint suggestions and generate files anew; writes
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all
	cargo run -q -p rollwright-crds --bin crdgen -- manifests/crds
	cargo run -q -p rollwright-crds --bin crdgen -- helm/rollwright/files/crds
	scripts/verify-chart.sh --update

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Steps of the targets above.
.PHONY: deps-build deps-run deps-test deps-cluster init test-images
deps-build:
	@scripts/install-deps.sh build
deps-run:
	@scripts/install-deps.sh run
deps-test:
	@scripts/install-deps.sh build run test
deps-cluster:
	@scripts/install-deps.sh build run cluster
init: deps-build
	cargo rustc --locked --profile $(PROFILE) -p rollwright-init --bin rollwright-init -- -C target-feature=+crt-static
test-images: engine
	@scripts/busybox-image.sh
