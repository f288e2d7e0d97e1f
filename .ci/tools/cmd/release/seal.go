// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	repository = "https://github.com/mcs-attest/mcs-attest"
	sums       = "SHA256SUMS"
)

// sum is the SHA-256 of a file of the release, by its path in it.
type sum struct{ path, hex string }

// sums returns the checksums of all files, sorted by path.
func (r *release) sums() (all []sum, err error) {
	err = filepath.WalkDir(r.out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(r.out, path)
		digest := sha256.Sum256(raw)
		all = append(all, sum{filepath.ToSlash(relative), hex.EncodeToString(digest[:])})
		return err
	})
	slices.SortFunc(all, func(a, b sum) int { return strings.Compare(a.path, b.path) })
	return all, err
}

// checksums writes SHA256SUMS, as sha256sum reads it, and its signature.
func (r *release) checksums(sign func([]byte) []byte) error {
	all, err := r.sums()
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, s := range all {
		fmt.Fprintf(&list, "%s  %s\n", s.hex, s.path)
	}
	if err := os.WriteFile(r.file(sums), list.Bytes(), 0o644); err != nil || sign == nil {
		return err
	}
	return os.WriteFile(r.file(sums+".sig"), sign(list.Bytes()), 0o644)
}

// signer returns the function that signs with the key in a file; nil without a file.
func signer(path string) (func([]byte) []byte, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s: not PEM", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: a key of type %T, not Ed25519", path, key)
	}
	return func(message []byte) []byte { return ed25519.Sign(private, message) }, nil
}

// provenance writes what was made of which commit, as an in-toto statement with SLSA's predicate. It has
// no time and no identity of the builder: the signature over SHA256SUMS says who made the release.
func (r *release) provenance(ctx context.Context) error {
	compiler, err := output(ctx, r.source, nil, "go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	all, err := r.sums()
	if err != nil {
		return err
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1"}
	for _, s := range all {
		statement.Subject = append(statement.Subject,
			&intoto.ResourceDescriptor{Name: s.path, Digest: map[string]string{"sha256": s.hex}})
	}
	architectures := make([]any, len(r.architectures))
	for i, a := range r.architectures {
		architectures[i] = a
	}
	parameters := map[string]any{"version": r.version, "architectures": architectures}
	if r.base != nil {
		parameters["base"] = r.baseName
	}
	external, err := structpb.NewStruct(parameters)
	if err != nil {
		return err
	}
	predicate := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType:          repository + "/blob/" + r.version + "/docs/releasing.md#provenance",
			ExternalParameters: external,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Uri: "git+" + repository + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.commit}},
				{Uri: "pkg:golang/stdlib@" + strings.TrimPrefix(strings.TrimSpace(compiler), "go"), Name: "go"},
			},
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: repository + "/blob/" + r.version + "/Makefile"}},
	}
	raw, err := protojson.Marshal(predicate)
	if err != nil {
		return err
	}
	statement.Predicate = &structpb.Struct{}
	if err := protojson.Unmarshal(raw, statement.Predicate); err != nil {
		return err
	}
	if err := statement.Validate(); err != nil {
		return err
	}
	return writeJSON(r.file("provenance.json"), statement)
}

// writeJSON writes a message indented. protojson's own white space differs from build to build.
func writeJSON(path string, m proto.Message) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, raw, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(path, append(text.Bytes(), '\n'), 0o644)
}
