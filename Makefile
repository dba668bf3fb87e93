# Shortcuts for the most common commands. `cargo xtask` has the rest.

# A shell older than the rustup installation does not have cargo in its PATH.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Seconds that `make fuzz` spends on each fuzz target.
FUZZ_SECONDS ?= 300
# Duration of `make soak`, seconds.
SOAK_SECONDS ?= 3600
# Duration of `make sim`, seconds.
SIM_SECONDS ?= 300
# Arguments of the broker for `make run`, such as ARGS="--listen 0.0.0.0:1883", of the benchmark for `make bench`, such
# as ARGS="fan-out-qos2 --rounds 5", or of `make bystander`, such as ARGS="ping-flood --samples 5000".
ARGS ?=

.PHONY: help run test fuzz sim bench bench-kafka bench-queue bench-peers bench-bus bystander soak
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build the broker and start it on 127.0.0.1:1883, data in ./data
	@xtask/setup cc
	cargo build --release -p mainstem
	exec target/release/mainstem $(ARGS)

test: ## Run every check and every test
	@xtask/setup cc c++
	cargo xtask ci

fuzz: ## Fuzz each target for FUZZ_SECONDS (300) seconds
	@xtask/setup cc c++
	cargo xtask fuzz --seconds $(FUZZ_SECONDS)

sim: ## Simulate random crashes of the log and of whole brokers for SIM_SECONDS (300) seconds, with a new seed per run
	@xtask/setup cc
	cargo xtask sim --seconds $(SIM_SECONDS)

bench: ## Measure the broker against other MQTT brokers (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench $(ARGS)

bench-kafka: ## Measure the Kafka listener against Apache Kafka (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-kafka $(ARGS)

bench-queue: ## Measure work queues against RabbitMQ and NATS JetStream (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-queue $(ARGS)

bench-peers: ## Install the brokers to compare with into target/peers, where a package registry has them
	@xtask/setup cc
	cargo xtask bench-peers

bench-bus: ## Measure the bus against other message buses (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bench-bus $(ARGS)

bystander: ## Measure innocent clients beside attackers (docs/benchmarks.md)
	@xtask/setup cc
	cargo xtask bystander $(ARGS)

soak: ## Run mixed loads for SOAK_SECONDS (3600) seconds; check for lost messages and growing memory
	@xtask/setup cc
	cargo xtask soak --seconds $(SOAK_SECONDS)
