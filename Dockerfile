# The image of the service itself: our static binaries and nothing else, so there is no shell in it and
# nothing to keep up to date. They have to be built before: `make image` does both.
#
# It is not the image that commands run in, which is sandbox-image/Dockerfile.
FROM scratch
COPY bin/sandboxd bin/sandbox bin/sandbox-agent /bin/
ENTRYPOINT ["/bin/sandboxd"]
