package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// KeepSealed is how long a replaced sealing key must still open: the longest
// challenge, a report ticket, and the clocks' difference.
const KeepSealed = 2*time.Hour + 15*time.Minute

// KeepTokens is how long a replaced signing key must still verify: the longest
// token and the replicas' leeway.
const KeepTokens = time.Hour + 5*time.Minute

// Names of the keys at rest: files below keys/, and keys of the Secret.
const (
	TokenKeys = "token.json"
	SealKeys  = "seal.json"
)

// Keys are what signs tokens and seals challenges.
type Keys struct {
	Tokens token.KeySet
	Seals  seal.Ring
}

// Rotate adds a key of each kind, in use after publish. With drop the old ones go
// at once, and everything that they made is void.
func (k Keys) Rotate(now time.Time, publish time.Duration, drop bool) (Keys, error) {
	if drop {
		k, publish = Keys{}, 0
	}
	set, err := k.Tokens.Prune(now, KeepTokens).Rotate(now, rand.Reader, publish)
	if errors.Is(err, token.ErrRotating) {
		return Keys{}, hint(err, "wait for it to finish ('token status' tells when), or add --now if a key was stolen")
	}
	if err != nil {
		return Keys{}, err
	}
	ring, err := k.Seals.Rotate(rand.Reader, now, publish, KeepSealed)
	return Keys{set, ring}, err
}

func parseKeys(tokens, seals []byte) (Keys, error) {
	set, err := token.ParseKeySet(tokens)
	if err != nil {
		return Keys{}, err
	}
	ring, err := seal.ParseRing(seals)
	return Keys{set, ring}, err
}

func (k Keys) encode() (tokens, seals secret.Bytes, err error) {
	if tokens, err = k.Tokens.EncodeSecret(); err != nil {
		return secret.Bytes{}, secret.Bytes{}, err
	}
	seals, err = k.Seals.EncodeSecret()
	return tokens, seals, err
}

// Keys reads keys/token.json and keys/seal.json.
func (f *Folder) Keys(context.Context) (Keys, error) {
	tokens, err := os.ReadFile(f.Config.Path("keys", TokenKeys))
	if err != nil {
		return Keys{}, fmt.Errorf("read token keys: %w", err)
	}
	seals, err := os.ReadFile(f.Config.Path("keys", SealKeys))
	if err != nil {
		return Keys{}, fmt.Errorf("read sealing keys: %w", err)
	}
	return parseKeys(tokens, seals)
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
	tokens, seals, err := k.encode()
	if err != nil {
		return err
	}
	return errors.Join(
		wholefile.Write(f.Config.Path("keys", TokenKeys), 0o600, tokens.Expose()),
		wholefile.Write(f.Config.Path("keys", SealKeys), 0o600, seals.Expose()),
	)
}

// Issuer is the tokens' "iss".
func (f *Folder) Issuer(context.Context) (string, error) { return f.Config.Issuer(), nil }

// PublishDelay is how long a new key is published before it is used.
func (f *Folder) PublishDelay(context.Context) (time.Duration, error) {
	return time.Duration(f.Config.KeyPublishDelay), nil
}
