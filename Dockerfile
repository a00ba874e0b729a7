# The image of the service itself: our static binaries and nothing else, so it has no shell and
# nothing to keep up to date. The binaries must be built first: `make image` does both.
#
# Commands run in another image: sandbox-image/Dockerfile.
FROM scratch
COPY bin/sandboxd bin/sandbox bin/sandbox-agent /bin/
ENTRYPOINT ["/bin/sandboxd"]
