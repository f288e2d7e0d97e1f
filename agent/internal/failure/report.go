// SPDX-License-Identifier: Apache-2.0

package failure

import (
	"context"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Limits of the contract, in bytes.
const (
	maxMessage = 4 << 10
	maxUnit    = 128
	maxResult  = 32
)

const (
	// reportTime is below systemd's default of TimeoutStopSec=: 90 s, and 45 s on Fedora.
	reportTime = 40 * time.Second
	pause      = 2 * time.Second
)

// Failure is what systemd reports about a unit that failed.
type Failure struct {
	Unit   string
	Result string // $SERVICE_RESULT
	Status int32  // $EXIT_STATUS, where it is a number
	BootID string
}

// Journal returns the last lines of Ignition's own log.
type Journal func(context.Context) (string, error)

// Send sends f to the verifier of the note and returns the correlation id. It retries temporary
// failures.
func Send(ctx context.Context, p paths.Paths, f Failure, journal Journal) (string, error) {
	note, authorities, err := load(p)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	message, err := journal(ctx)
	if err != nil {
		message = "the journal cannot be read: " + err.Error()
	}
	req := &mcsattestv1.ReportRequest{
		Ticket:     note.Ticket,
		Unit:       cut(Redact(f.Unit), maxUnit),
		Result:     cut(Redact(f.Result), maxResult),
		ExitStatus: f.Status,
		Message:    tail(Redact(message), maxMessage),
		BootId:     cut(f.BootID, 36),
	}
	dialer := client.NewDialer(authorities)
	if note.Proxy != "" {
		if dialer.Proxy, err = url.Parse(note.Proxy); err != nil {
			return "", errors.New("the proxy in the note is not a URL")
		}
	}
	for {
		id, err := send(ctx, dialer, note.Origin, req)
		var denied *client.Denied
		if err == nil || errors.As(err, &denied) && !denied.Temporary || errors.Is(err, client.ErrNotVerifier) {
			return id, err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(pause):
		}
	}
}

func send(ctx context.Context, d *client.Dialer, origin string, req *mcsattestv1.ReportRequest) (string, error) {
	s, err := client.Connect(ctx, d, origin)
	if err != nil {
		return "", err
	}
	defer s.Close()
	resp, err := s.Report(ctx, req)
	if err != nil {
		return "", err
	}
	return resp.GetCorrelationId(), nil
}

// secrets are patterns of what must not leave the machine. A line with a key of a config is removed
// entirely.
var secrets = []struct {
	shape *regexp.Regexp
	with  string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|$)`), "[PEM removed]"},
	{regexp.MustCompile(`(?m)^.*("ignition"|"storage"|"httpHeaders"|"passwordHash"|"contents").*$`), "[config removed]"},
	{regexp.MustCompile(`(?i)(bearer|basic)\s+[^\s",]+`), "$1 [removed]"},
	{regexp.MustCompile(`(?i)((?:password|passphrase|token|secret|key)["']?\s*[:=]\s*)["']?[^\s"',]+`), "${1}[removed]"},
	{regexp.MustCompile(`(?i)data:[a-z0-9/+.;=-]*,[^\s"']+`), "data:[removed]"},
	{regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']+`), "$1?[removed]"},
	{regexp.MustCompile(`(https?://)[^\s"'/@]+@`), "$1[removed]@"},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)*`), "[removed]"},
	{regexp.MustCompile(`[A-Za-z0-9+/_=-]{48,}`), "[removed]"},
}

// Redact removes from text everything that looks like a secret.
func Redact(text string) string {
	text = strings.ToValidUTF8(text, "?")
	for _, s := range secrets {
		text = s.shape.ReplaceAllString(text, s.with)
	}
	return text
}

func cut(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// tail keeps the end of s, because the last line has the cause.
func tail(s string, most int) string {
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}
