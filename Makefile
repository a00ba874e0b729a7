# Two commands are enough on a fresh machine: make demo, make test. Each sets up what it needs.
.DEFAULT_GOAL := help
GOTESTSUM = go tool -modfile=tools/test/go.mod gotestsum --format testname --hide-summary skipped,output \
	--rerun-fails=2 --rerun-fails-run-root-test --rerun-fails-max-failures=15
.PHONY: help setup demo test unit lint bench binaries image install uninstall clean

help: ## show the targets
	@printf 'daycare-sandbox: agents'\'' commands in gVisor, per user\n\n'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Docker, runsc, sandbox image, binaries
	@scripts/setup.sh

demo: ## set up, start sandboxd if none runs, and run a command under gVisor
	@scripts/demo.sh

test: ## set up, then run all tests with a real Docker under runsc and runc
	@scripts/setup.sh
	@scripts/setup.sh tests
	cd bench && go test -count=1 ./...
	cd tools/runsc && CGO_ENABLED=0 go test -trimpath -count=1 ./...
	@failed=0; \
	$(GOTESTSUM) --packages "$$(go list ./... | grep -v '/e2e$$' | xargs)" -- -count=1 -p 3 -ldflags=-w || failed=1; \
	$(GOTESTSUM) --packages ./e2e -- -count=1 -parallel 4 -timeout 78m -ldflags=-w || failed=1; \
	exit $$failed

unit: ## run the tests that need no Docker, as root, with the race detector
	go test -count=1 -race $$(go list ./... | grep -v -e /e2e -e /egress -e /cluster)
	cd bench && go test -count=1 ./...
	cd tools/runsc && CGO_ENABLED=0 go test -trimpath -count=1 ./...

lint: ## check formatting, vet, staticcheck, shell scripts
	@scripts/lint.sh

bench: ## set up, measure against docker exec, docker run, dnsmasq and haproxy, write bench/RESULTS.md
	@scripts/setup.sh
	@scripts/setup.sh bench
	go run -C bench .

binaries: ## build only bin/; needs neither Docker nor root
	@scripts/setup.sh binaries

image: binaries ## build the image of the service itself, for docker-compose
	docker build -q -t $${SANDBOX_SERVICE_IMAGE:-daycare-sandboxd:latest} .

install: ## install programs, systemd unit, settings and completions (PREFIX, DESTDIR)
	@scripts/install.sh

uninstall: ## remove what install and the service made; settings and data stay
	@scripts/install.sh uninstall

clean: ## stop this checkout's demo, and remove what it made and bin/
	@scripts/demo.sh stop
	rm -rf bin
