# One line of `make help` per target: the text after ##.

# golangci-lint is built from source at this version, whatever else is installed.
LINT_VERSION := v2.15.0
LINT         := $(CURDIR)/bin/golangci-lint-$(LINT_VERSION)

# How long `make fuzz` runs each fuzz target.
FUZZTIME ?= 10s

# How long `make chaos` runs. SEED=n repeats the faults of an earlier run, which logs it.
CHAOS ?= 20s
SEED  ?=

# How many calls `make soak` makes.
SOAK ?= 1000000

# modules.txt is the only list of modules: a green root says nothing of the others.
MODULES := $(shell cat modules.txt)

# A workspace would hide what the go.mod files miss.
export GOWORK := off

# $(call each,title,command) runs a command in every module and stops at the first that fails.
each = @set -e; for module in $(MODULES); do echo "== module $$module: $(1)"; (cd "$$module" && $(2)); done

.DEFAULT_GOAL := help
.PHONY: help tools needed modules test test-etcd test-zk test-redis-lock test-redlock lint fuzz bench tidy check chaos soak test-sql

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  %-15s %s\n' "$$name" "$$text"; done

tools: needed $(LINT) ## Install what tests and lint need and this machine lacks

needed:
	@bash .ci/need gcc gcc libc6-dev # the race detector links C
	@bash .ci/need redis-server redis-server
	@bash .ci/need redis-cli redis-tools
	@bash .ci/need etcd etcd-server
	@bash .ci/need java default-jre-headless
	@bash .ci/need /usr/share/zookeeper/bin/zkServer.sh zookeeper default-jre-headless
	@bash .ci/need '/usr/lib/postgresql/*/bin/postgres' postgresql
	@bash .ci/need mariadbd mariadb-server
	@bash .ci/need promtool prometheus # alert rules and dashboard queries

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION) into bin/: some minutes, once"
	@mkdir -p bin
	GOBIN="$(CURDIR)/bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv bin/golangci-lint "$@"

modules:
	@found=$$(find . -name go.mod -not -path './bin/*' -exec dirname {} + | sed 's|^\./||' | sort); \
	listed=$$(sort modules.txt); \
	if [ "$$found" != "$$listed" ]; then \
		echo "modules.txt lists" $$listed "but there is a go.mod in" $$found": make them agree" >&2; exit 1; \
	fi

test: needed modules ## Vet and test every module, with the race detector
	$(call each,go vet,go vet ./...)
	$(call each,go test,go test -race -shuffle=on -count=1 -timeout 20m ./...)
	@echo "== what the race detector cannot see: it makes sync.Pool forget at random"
	go test -shuffle=on -count=1 ./internal/local

test-etcd: needed ## Test lock/etcdlock alone, on etcd servers of one and three members
	cd lock/etcdlock && go test -race -shuffle=on -count=1 ./...
	cd lock/historytest && go test -race -count=1 -run Etcd ./...
	cd lock/coretest && go test -race -count=1 -timeout 20m -run Etcd ./...

test-zk: needed ## Test lock/zklock alone, on ZooKeeper servers, one and three
	cd lock/zklock && go test -race -shuffle=on -count=1 ./...
	cd lock/historytest && go test -race -count=1 -run ZooKeeper ./...

test-sql: needed ## Test lock/sqllock alone, on PostgreSQL, MariaDB and SQLite
	cd lock/sqllock && go test -race -shuffle=on -count=1 ./...
	cd lock/historytest && go test -race -count=1 -run 'PostgreSQL|MariaDB|SQLite' ./...
	cd lock/coretest && go test -race -count=1 -timeout 20m -run PostgreSQL ./...

test-redis-lock: needed ## Test lock/redislock alone
	go test -race -shuffle=on -count=1 ./lock/redislock
	cd lock/historytest && go test -race -count=1 -run Redis ./...

test-redlock: needed ## Test the Redlock of lock/redislock, on five redis-servers
	go test -race -shuffle=on -count=1 -run Redlock ./lock/redislock
	cd lock/historytest && go test -race -count=1 -run Redlock ./...

lint: $(LINT) modules ## Lint every module with the one .golangci.yml
	$(call each,lint,"$(LINT)" run --config "$(CURDIR)/.golangci.yml" ./...)

fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r dirname | sort -u); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$dir"/*_test.go); do \
			echo "== $$dir: $$target"; \
			(cd "$$dir" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) .); \
		done; \
	done

chaos: needed ## Run processes under random faults for CHAOS (20s) and check what they saw
	@mkdir -p bin
	go test -race -c -o bin/chaos.test ./internal/chaos
	@CHAOS=$(CHAOS) SEED=$(SEED) bin/chaos.test -test.run '^TestNothingOldComesBackUnderFaults$$' -test.v -test.timeout 0

soak: needed ## Make SOAK (1000000) calls and look that nothing grows; Close 1 000 times under load
	SOAK=$(SOAK) go test -count=1 -v -timeout 0 -run '^Test(NothingGrowsWithTheNumberOfCalls|CloseUnderLoadLeavesNothing)$$' ./internal/chaos

bench: needed modules ## Run the benchmarks of every module
	$(call each,benchmarks,go test -run '^$$' -bench . -benchmem ./...)

tidy: modules ## Tidy every go.mod
	$(call each,tidy,go mod tidy)

check: test lint ## All that CI runs
