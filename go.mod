module github.com/mcs-attest/mcs-attest

go 1.26.0

// The zip of this version cannot be downloaded; without the exclusion Go selects it
// for go-tpm-tools and the build fails. The version Go takes instead works.
exclude github.com/google/go-eventlog v0.0.3-0.20261001001437-1991f15bc4b0

require (
	connectrpc.com/connect v1.21.1 // indirect
	github.com/coreos/ignition/v2 v2.26.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/google/go-attestation v0.6.4 // indirect
	github.com/google/go-eventlog v0.0.3-0.20260617163629-883cc5652c69 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/google/go-tpm-tools v0.4.11 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/prometheus/client_golang v1.25.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/apimachinery v0.35.1 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)
