// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/pkg/bounded"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// maxImageToken is the limit for the image's file, in bytes. A pointer config has a few KiB.
const maxImageToken = 64 << 10

const hintImageToken = "create the file with 'mcs-attest-verifier token provisioning pointer FILE', which prints a " +
	"pointer config " +
	"with the token, its servers and their certificate authority"

// addImageToken gives the target of a pointer config the token of the image, if the config presents none.
func (a *agent) addImageToken(config *pointer.Config, t *flow.Target) {
	if t.Provisioning.Empty() {
		t.Provisioning = a.imageToken(config, t.Origin)
	}
}

// imageToken returns the provisioning token that the image holds for one server of the machine's
// pointer config. The image stores it as a pointer config of its own, with the servers that the
// token is for, their certificate authorities, and the token in the headers.
//
// The author of the machine's pointer config must not receive the token. So the machine uses it
// only if Ignition would send it to no other server and would trust no other authority; see
// [pointer.Config.ConfinedTo].
func (a *agent) imageToken(machine *pointer.Config, origin string) secret.Bytes {
	token, err := a.readImageToken(machine, origin)
	if errors.Is(err, fs.ErrNotExist) {
		return secret.Bytes{}
	}
	if err != nil {
		a.console.Step("the provisioning token of the image is not used: %v", err)
		if h, ok := errors.AsType[hinted](err); ok {
			a.console.Hint(h.hint)
		}
		return secret.Bytes{}
	}
	return token
}

func (a *agent) readImageToken(machine *pointer.Config, origin string) (secret.Bytes, error) {
	file := a.paths.ProvisioningToken
	f, err := os.Open(file)
	if err != nil {
		return secret.Bytes{}, err
	}
	defer func() { _ = f.Close() }()
	unusable := func(err error) error { return hinted{fmt.Errorf("%s: %w", file, err), hintImageToken} }
	raw, err := bounded.Read(f, maxImageToken)
	if err != nil {
		return secret.Bytes{}, unusable(err)
	}
	image, err := pointer.Parse(raw)
	if errors.Is(err, pointer.ErrNotIgnition) {
		return secret.Bytes{},
			unusable(errors.New("it is not a pointer config, so it does not say which server the token is for"))
	}
	if err != nil {
		return secret.Bytes{}, unusable(err)
	}
	authorities, err := image.CertificateAuthorities()
	if err != nil {
		return secret.Bytes{}, unusable(err)
	}
	if len(authorities) == 0 {
		return secret.Bytes{}, unusable(errors.New("it names no certificate authority"))
	}
	token := tokenFor(image, origin)
	if token.Empty() {
		return secret.Bytes{}, fmt.Errorf("%s has no token for %s", file, origin)
	}
	if err := machine.ConfinedTo(origin, authorities); err != nil {
		return secret.Bytes{}, fmt.Errorf("it is for %s and its certificate authority only: the machine's pointer config: %w",
			origin, err)
	}
	return token, nil
}

// tokenFor returns the token for any pool of the server at origin.
func tokenFor(image *pointer.Config, origin string) secret.Bytes {
	for _, s := range image.Sources() {
		if !s.Secure || s.Origin != origin {
			continue
		}
		if token, _ := image.Presented(s.Origin, s.Pool); !token.Empty() {
			return token
		}
	}
	return secret.Bytes{}
}
