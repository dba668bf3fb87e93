# The few commands there are. Everything else is `cargo xtask`.

# A shell that has not been restarted since rustup was installed does not have cargo in its PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Seconds that `make fuzz` spends on each fuzz target.
FUZZ_SECONDS ?= 300
# Seconds that `make soak` takes.
SOAK_SECONDS ?= 3600
# Seconds that `make sim` takes.
SIM_SECONDS ?= 300
# What `make run` hands to the broker, such as ARGS="--listen 0.0.0.0:1883"; or `make bench` to the measurement, such as
# ARGS="fan-out-qos2 --rounds 5".
ARGS ?=

.PHONY: help run test fuzz sim bench bench-kafka bench-queue bench-peers bench-bus soak
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build the broker and start it on 127.0.0.1:1883, data in ./data
	@xtask/setup cc
	cargo build --release -p mainstem
	exec target/release/mainstem $(ARGS)

test: ## Run every check and every test
	@xtask/setup cc
	cargo xtask ci

fuzz: ## Fuzz each target for FUZZ_SECONDS (300) seconds
	@xtask/setup cc c++
	cargo xtask fuzz --seconds $(FUZZ_SECONDS)

sim: ## Crash the log and whole brokers at random for SIM_SECONDS (300) seconds, each time with another seed
	@xtask/setup cc
	cargo xtask sim --seconds $(SIM_SECONDS)

bench: ## Measure the broker beside its peers (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench $(ARGS)

bench-kafka: ## Measure the Kafka door beside Apache Kafka (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-kafka $(ARGS)

bench-queue: ## Measure work queues beside RabbitMQ and NATS JetStream (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-queue $(ARGS)

bench-peers: ## Install the peers that a package registry has, into target/peers
	@xtask/setup cc
	cargo xtask bench-peers

bench-bus: ## Measure the bus beside its peers (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-bus $(ARGS)

soak: ## Put many loads on the broker for SOAK_SECONDS (3600) seconds, and watch it
	@xtask/setup cc
	cargo xtask soak --seconds $(SOAK_SECONDS)
