// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Names of the keys at rest: files below keys/, and keys of the Secret.
const (
	TokenKeys = keys.TokenFile
	SealKeys  = keys.SealFile
)

// Keys are what signs tokens and seals challenges.
type Keys = keys.Pair

// Rotate adds a key of each kind, in use after publish. With drop it deletes the
// old ones immediately, and everything that they made is void.
func Rotate(k Keys, now time.Time, publish time.Duration, drop bool) (Keys, error) {
	if drop {
		k, publish = Keys{}, 0
	}
	next, err := k.Rotate(now, publish)
	if errors.Is(err, token.ErrRotating) {
		return Keys{}, hint.New(err, "wait for it to finish ('token status' shows when), or add --now if a key was stolen")
	}
	return next, err
}

// Keys reads keys/token.json and keys/seal.json.
func (f *Folder) Keys(context.Context) (Keys, error) {
	data := map[string][]byte{}
	for _, name := range []string{TokenKeys, SealKeys} {
		raw, err := os.ReadFile(f.Config.Path("keys", name))
		if err != nil {
			return Keys{}, fmt.Errorf("read keys: %w", err)
		}
		data[name] = raw
	}
	return keys.Parse(data)
}

// ChangeKeys replaces the keys by what change makes of them. Change may be called
// more than once.
func (f *Folder) ChangeKeys(ctx context.Context, change func(Keys) (Keys, error)) error {
	k, err := f.Keys(ctx)
	if err != nil {
		return err
	}
	if k, err = change(k); err != nil {
		return err
	}
	data, err := k.Data()
	if err != nil {
		return err
	}
	return errors.Join(
		wholefile.Write(f.Config.Path("keys", TokenKeys), 0o600, data[TokenKeys]),
		wholefile.Write(f.Config.Path("keys", SealKeys), 0o600, data[SealKeys]),
	)
}

// Configuration is the folder's.
func (f *Folder) Configuration(context.Context) (*config.Config, error) { return f.Config, nil }
