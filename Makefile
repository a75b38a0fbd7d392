# What developers run by hand. The gate and its steps are in .ci/run. Using the library needs
# nothing here. Targets that need root say so.

# How often race runs every test.
COUNT ?= 3
# How long fuzz runs every fuzz test.
FUZZTIME ?= 30s
# How many states explore visits in every scope, and for how long it walks in each.
STATES ?= 100000
WALK ?= 30s
# How many container lives soak makes.
LIVES ?= 10000
# The releases for kubelets; vendored is the first one in a module that vendors it.
RELEASES ?= 1.32 1.33 1.34 1.35 1.36 1.37 vendored
# How often bench runs every benchmark; benchstat needs six at least.
BENCHCOUNT ?= 6

# Each module is built by itself; go.work is only for "go run ./plegwatch".
export GOWORK = off

.DEFAULT_GOAL := help

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: ## before every commit: format, vet, tidiness, dependencies, tests; a minute or two
	hack/fmt.sh
	hack/vet.sh
	hack/tidy.sh -diff
	hack/deps.sh
	go test ./...

.PHONY: newest
newest: ## raises the versions in internal/compat/newest.mod, and tests with them
	GOTOOLCHAIN=$$(sed -n 's/^toolchain //p' internal/compat/newest.mod) go get -modfile=internal/compat/newest.mod -u -t ./...
	hack/compat.sh newest

.PHONY: mutants
mutants: ## which tests find small faults of the core, of a list of 198; an hour
	GOWORK=off go run -C internal/tools ./mutants -root "$(CURDIR)" "$(CURDIR)/internal/tools/mutants/list.txt" \
		. ./internal/core/schedule ./internal/core/broadcast ./internal/test/contract

.PHONY: layers
layers: ## references between folders, and between files at the root, that go against the layers; half a minute
	GOWORK=off go run -C internal/tools ./layers "$(CURDIR)"

.PHONY: licences
licences: ## the licences of the library's dependencies; hack/licences.sh -all for every module
	hack/licences.sh

.PHONY: snapshot
snapshot: ## the files of a release in .cache/dist, built twice and compared
	hack/snapshot.sh

.PHONY: race
race: ## the tests under the race detector, in random order, COUNT times (3)
	go test -race -shuffle=on -count=$(COUNT) ./...

.PHONY: emulated
emulated: ## the tests on an emulated arm64, and those of cri on a big-endian s390x; ten minutes or more
	hack/emulated.sh

.PHONY: cover
cover: ## the coverage of the library's tests, with a line for each function that they do not cover whole
	@mkdir -p .cache
	go test -coverpkg=.,./cri,./attribution,./podworkers,./plegtest,./plegtest/criserver -coverprofile=.cache/cover.out ./...
	@go tool cover -func=.cache/cover.out | grep -v '100.0%$$'

.PHONY: lint
lint: ## golangci-lint, in every module; the first time builds it, which takes some minutes
	hack/lint.sh

# Not in .ci/run: it asks a database on the internet.
.PHONY: vuln
vuln: ## known vulnerabilities in the library's dependencies; needs the internet
	go tool -modfile=internal/tools/go.mod govulncheck ./...

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME (30s)
	hack/fuzz.sh $(FUZZTIME)

.PHONY: explore
explore: ## every order of small histories on the real core, STATES (100000) in a scope; random orders for WALK (30s)
	go test -count=1 -timeout=3h -v -run='^TestExplore' . -explore.states=$(STATES) -explore.walk=$(WALK)

# PLEG_RUNTIME selects another runtime than containerd 2.4, also for the targets below.
.PHONY: e2e
e2e: ## the tests on a real containerd, built the first time, or on PLEG_RUNTIME; needs root
	PLEG_STEP=e2e .ci/run

# To choose runtimes: make runtimes RUNTIMES='crio crio-no-events'.
.PHONY: runtimes
runtimes: ## tests, soak, restarts and latency on nine runtimes, and the table in docs/RUNTIMES.md; needs root, PLEG_CRIO; an hour
	cd internal/e2e && go run ./cmd/runtimes -results ../../docs/bench/runtimes.json -write ../../docs/RUNTIMES.md $(RUNTIMES)

# To choose nodes: make nodes NODES='amd64-6.1/containerd-2.4 systemd'.
.PHONY: nodes
nodes: ## the tests in virtual machines, with other kernels, cgroups and arm64, and their table in docs/RUNTIMES.md; needs root; hours without KVM
	cd internal/e2e && go run ./cmd/nodes -write ../../docs/bench/nodes.json $(NODES); status=$$?; \
		go run ./cmd/nodes -draw && exit $$status

.PHONY: latency
latency: ## the latency of a death in a real runtime to its event, and of a blocked reader; needs root
	cd internal/e2e && go run ./cmd/latency

.PHONY: scale
scale: ## what an agent costs on a node of 110 and of 500 pods: CPU, memory, calls, metric series; 2 minutes
	cd internal/e2e && go run ./cmd/scale

.PHONY: soak
soak: ## LIVES container lives (10000) in a containerd under fire; an hour or two; needs root
	cd internal/e2e && go test -count=1 -timeout=6h -v -run='^TestSoak$$' . -soak.lives=$(LIVES) -each=6h

.PHONY: browser
browser: ## the page of plegz in a real Chromium, installed if there is none; a minute
	PLEG_STEP=browser .ci/run

.PHONY: picture
picture: ## the picture of the page in README.md, docs/plegz.png; half a minute
	hack/chromium.sh
	cd plegwatch/e2e/browser && go run ./cmd/picture --stuck --out ../../../docs/plegz.png

.PHONY: kubelet
kubelet: ## compares a kubelet on the library with the released one on a real containerd; about an hour; needs root
	go run ./kubelet/build
	go run ./kubelet/build -stock
	cd kubelet/e2e/compare && go test -count=1 -v -timeout=6h .

.PHONY: kubelet-tests
kubelet-tests: ## the kubelet's own tests of its PLEG, with ours; some minutes
	go run ./kubelet/build
	go run ./kubelet/build -test

.PHONY: kubelets
kubelets: ## kubelets of RELEASES (1.32 to 1.37) on the library: their own tests, ten pods on a real containerd; an hour or more; needs root
	hack/kubelets.sh $(RELEASES)

.PHONY: mixin
mixin: ## rules, alerts and dashboard, with promtool and a Prometheus (Debian's package prometheus); a minute or two
	PLEG_STEP=mixin .ci/run

.PHONY: diff
diff: ## compares the library with the kubelet's own code: same histories, same events, caches, answers
	PLEG_STEP=differential .ci/run

.PHONY: bench
bench: ## the benchmarks beside the kubelet's, BENCHCOUNT times (6), into .cache/bench.txt
	@mkdir -p .cache
	(cd kubelet/differential && go test -run='^$$' -bench=. -benchmem -benchtime=300ms -count=$(BENCHCOUNT) ./...) | \
		tee .cache/bench.txt

.PHONY: plegwatch
plegwatch: ## the program, .cache/plegwatch
	CGO_ENABLED=0 go build -C plegwatch -trimpath -ldflags="-s -w -X main.version=$$(git describe --tags --always --match='v*')" \
		-o ../.cache/plegwatch .

.PHONY: nodeagent
nodeagent: ## the node agent on a runtime of its own; Ctrl-C ends it
	cd nodeagent && go run .

.PHONY: live
live: ## the node agent on a real containerd, or on PLEG_RUNTIME, and beside a kubelet, which it builds, with all pods; needs root; 20 minutes
	cd nodeagent/e2e && go test -count=1 -timeout=60m -parallel=1 ./... -fire.kills=20 -latency.samples=20 -idle.for=1m -beside.all

.PHONY: jobs
jobs: ## ten minutes of kills of the node agent and of the runtime, containerd or PLEG_RUNTIME, with a hundred jobs; needs root
	cd nodeagent/e2e && go test -count=1 -timeout=30m -v -run='^TestJobsUnderFire$$' . -jobs.for=10m -jobs.count=100

.PHONY: deploy-test
deploy-test: ## plegwatch/deploy/: manifests, unit, plugin; the DaemonSet's pod under a kubelet on a real containerd, or on PLEG_RUNTIME; needs root
	PLEG_STEP=deployment .ci/run

.PHONY: prometheusrule
prometheusrule: ## the rules and alerts of plegwatch/mixin/ for the Prometheus operator, in plegwatch/deploy/kustomize
	cd plegwatch/e2e/deploy && go test -count=1 -run='^TestPrometheusRuleIsTheMixin$$' . -rewrite

.PHONY: tidy
tidy: ## format, and tidy every module
	gofmt -w .
	hack/tidy.sh

.PHONY: clean
clean: ## remove what the tests built: containerd and its images
	rm -rf .cache
