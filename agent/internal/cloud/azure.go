// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// azure sends Azure's attested document and, if the verifier asks for it, a token
// of the machine's managed identity. Only the machine's side names the resource of
// that token.
type azure struct {
	quick, steady *metadata.Azure
	resourceFile  string
}

func newAzure(p paths.Paths) (platform, error) {
	quick, err := metadata.NewAzure(p.Metadata, metadata.Quick)
	if err != nil {
		return nil, err
	}
	steady, err := metadata.NewAzure(p.Metadata, metadata.Steady)
	return &azure{quick, steady, p.AzureTokenResource}, err
}

func (*azure) kinds() []evidence.Kind { return []evidence.Kind{evidence.AzureAttested} }

func (z *azure) lookup(ctx context.Context) (string, error) { return z.quick.ProviderID(ctx) }

func (z *azure) gather(ctx context.Context, kind evidence.Kind, b evidence.Binding,
	ch *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	if kind != evidence.AzureAttested {
		return nil, nil, unsupported(kind)
	}
	resource := ch.GetAzureTokenResource()
	if resource != "" {
		if err := z.allows(resource); err != nil {
			return nil, nil, err
		}
	}
	if document, err = z.steady.Attested(ctx, attester.Nonce(b.Transcript)); err != nil {
		return nil, nil, err
	}
	if resource != "" {
		token, err = z.steady.IdentityToken(ctx, resource)
	}
	return document, token, err
}

// OtherResource reports that the verifier asked for a managed identity token for a resource other
// than the machine's own.
type OtherResource struct{ Asked, Own string }

func (o *OtherResource) Error() string {
	return fmt.Sprintf("the verifier asks for a token of the managed identity for %.80q; this machine requests them "+
		"only for %.80q", o.Asked, o.Own)
}

// maxResource is the largest resource name in bytes. The verifier's configuration has the same
// limit.
const maxResource = 256

// allows returns an error unless the resource is the machine's own.
func (z *azure) allows(resource string) error {
	own, err := ownResource(z.resourceFile)
	if err != nil {
		return err
	}
	if resource != own {
		return &OtherResource{Asked: resource, Own: own}
	}
	return nil
}

// ownResource reads the resource from the image's file, or returns the built-in one if the file
// does not exist.
func ownResource(file string) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return attester.TokenResource, nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxResource+2))
	if err != nil {
		return "", err
	}
	own := strings.TrimSpace(string(raw))
	if own == "" || len(own) > maxResource || strings.ContainsAny(own, " \t\r\n") {
		return "", &BadResource{file}
	}
	return own, nil
}

// BadResource reports a file that does not contain exactly one resource.
type BadResource struct{ File string }

func (b *BadResource) Error() string {
	return fmt.Sprintf("%s does not hold one resource in one line of at most %d bytes", b.File, maxResource)
}
