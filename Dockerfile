# The image of a release, built with an engine: docker build --tag penstock .
# It has the files and the settings that "make dist" gives the image without an engine. A test compares them.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETARCH
ARG VERSION=""
WORKDIR /source
COPY . .
RUN cd scripts \
 && go run ./dist build -archives-only -only "linux/$TARGETARCH" -version "$VERSION" -out /out \
 && tar -xzf /out/*.tar.gz --strip-components=1 -C /out

FROM scratch
COPY --from=build /out/penstock /usr/bin/penstock
COPY --from=build /out/LICENSE /out/THIRD_PARTY_LICENSES /licenses/
LABEL org.opencontainers.image.title="penstock" \
      org.opencontainers.image.description="rate limiter for HTTP APIs" \
      org.opencontainers.image.source="https://github.com/penstock/penstock" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/usr/bin
USER 65532:65532
WORKDIR /
EXPOSE 8080 9180
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["/usr/bin/penstock", "healthcheck"]
ENTRYPOINT ["/usr/bin/penstock"]
CMD ["serve"]
