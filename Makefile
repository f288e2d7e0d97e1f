# SPDX-License-Identifier: Apache-2.0
# Two commands do everything on a fresh Debian machine:
#   make demo   a real VM boots, attests and is provisioned, told as it happens
#               (PLATFORM=aws, azure or gcp: a VM of that cloud, emulated;
#               BOOT=grub: through shim and GRUB with Secure Boot;
#               BOOT=stock: an image without the agent)
#   make test   every test
# and make demo-cluster is the demo in a cluster.
# Both install what they need first and are safe to run again.

SHELL   := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BIN     := bin
TOOLS   := $(BIN)/tools
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE    ?= $(shell git log -1 --format=%ct 2>/dev/null)
STAMP   := github.com/mcs-attest/mcs-attest/pkg/version
LDFLAGS := -s -w -buildid= -X $(STAMP).version=$(VERSION) -X $(STAMP).commit=$(COMMIT) -X $(STAMP).date=$(DATE)
# Builds and tests share compiled packages, also with other folders of the same source.
export GOFLAGS := $(GOFLAGS) -trimpath
# .ci/tools/cmd/release builds with the same flags.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
# The contract is only HTTP/1.1, so the agent is built without net/http's HTTP/2: a third of a megabyte less in every
# initramfs. The compiler copies no function into its callers: half a megabyte less under zstd -19.
# testvm/binaries builds it with the same flags.
AGENTFLAGS := -tags=nethttpomithttp2 -gcflags=all=-l

# A Go that .ci/deps installed for lack of any other.
export PATH := $(CURDIR)/$(BIN)/go/bin:/usr/local/go/bin:$(PATH)

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: deps
deps: ## install the Debian packages and the Go toolchain (as root)
	@.ci/deps

.PHONY: build
build: ## both binaries into bin/
	@mkdir -p $(BIN)
	$(GOBUILD) $(AGENTFLAGS) -o $(BIN)/mcs-attest-agent ./agent
	$(GOBUILD) -o $(BIN)/mcs-attest-verifier ./verifier

.PHONY: demo
demo: deps build ## one VM from power-on to provisioned, narrated; PLATFORM=aws, azure or gcp: by its cloud; BOOT=grub or stock
	@go run ./testvm/cmd/demo -platform "$(PLATFORM)" -boot "$(BOOT)"

.PHONY: demo-cluster
demo-cluster: deps build ## an API server, three replicas, one VM, a killed replica, narrated
	@go run ./testvm/cmd/demo-cluster

.PHONY: test
test: deps tools build ## everything: lint, size, unit, integration, swtpm, boot scenarios
	@.ci/test

.PHONY: soak
soak: export MCS_ATTEST_SOAK := 1
soak: test simulation ## the same with many repetitions: 500 machines, 100 000 generated requests, SEEDS of the simulation

SEEDS ?= 10000
.PHONY: simulation
simulation: ## SEEDS runs of the simulation, continuing an interrupted run, and the bugs that it must find
	@.ci/simulation $(SEEDS)
	@go test -vet=off -count=1 -timeout=0 -run '^TestPlantedBugs$$' ./verifier/internal/simulation \
		-simulation.planted=500

.PHONY: unit
unit: ## the Go tests without the race detector, API servers and boot scenarios
	@# The longest first.
	@MCS_ATTEST_UNIT=1 go test -vet=off -p 3 -parallel 8 ./verifier ./testvm/client $$(go list ./... | grep -v /testvm/scenarios/)

.PHONY: lint
lint: tools build ## gofmt, golangci-lint, buf, generated code, shellcheck, size
	@.ci/lint

.PHONY: mutate
mutate: tools ## mutants that the tests of a package do not notice: PKG=./pkg/token; without PKG, those of this change
	@.ci/mutate $(PKG)

.PHONY: vulncheck
vulncheck: tools ## known vulnerabilities in both programs; it needs vuln.go.dev, so CI does not run it
	@$(TOOLS)/govulncheck $(if $(DB),-db "$(DB)") ./agent ./verifier || { \
		[ $$? = 3 ] || echo "hint: govulncheck needs https://vuln.go.dev; DB=URL names a copy of its database" >&2; exit 1; }

.PHONY: bench
bench: ## ratios against named peers, in one run
	@.ci/bench

PAIRS ?= 5
.PHONY: bench-boot
bench-boot: deps ## what the agent adds to a first boot: PAIRS=5 boots of each kind
	@go test -run '^$$' -bench FirstBoot -benchtime $(PAIRS)x -timeout 60m ./testvm/scenarios/accepted

.PHONY: image
image: build ## the agent for an existing initramfs: appended cpio, and a tarball with "make install"
	@dracut/image.sh $(BIN)/mcs-attest-agent $(BIN)

.PHONY: sbom
sbom: tools build ## what both binaries are made of (CycloneDX)
	@$(TOOLS)/sbom -version $(VERSION) -o $(BIN) $(BIN)/mcs-attest-agent $(BIN)/mcs-attest-verifier

.PHONY: release
release: tools ## what a version ships, into dist/: VERSION=v0.3.0, KEY=FILE to sign, PUSH=REGISTRY/PATH, BASE=IMAGE
	@$(TOOLS)/release -version "$(VERSION)" -o dist $(if $(BASE),-base "$(BASE)") $(if $(KEY),-key "$(KEY)") \
		$(if $(PUSH),-push "$(PUSH)")

.PHONY: generate
generate: tools ## the generated Go code of proto/, pkg/api and the web page, and the CRDs
	@cd proto && PATH="$(CURDIR)/$(TOOLS):$$PATH" buf generate
	@$(TOOLS)/templ generate -log-level error -path verifier/internal/page
	@$(TOOLS)/controller-gen object crd paths=./pkg/api/... output:crd:dir=deploy/base/crds

.PHONY: tools
tools: $(TOOLS)/.stamp
$(TOOLS)/.stamp: .ci/tools/go.mod .ci/tools/go.sum $(wildcard .ci/tools/*/*.go .ci/tools/cmd/*/*.go)
	@mkdir -p $(TOOLS)
	@echo "tools: building buf, golangci-lint and the generators (once)"
	@cd .ci/tools && go build -o $(CURDIR)/$(TOOLS)/ tool ./cmd/...
	@touch $@

.PHONY: clean
clean: ## remove what was built here; the cache outside the tree stays
	rm -rf $(BIN) dist artifacts
