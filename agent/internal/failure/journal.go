// SPDX-License-Identifier: Apache-2.0

package failure

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// journalTime is the limit for both reads of the journal. They are part of [reportTime].
var journalTime = 20 * time.Second

const (
	// journalLines is how many of Ignition's last log lines are kept.
	journalLines = 40
	// searchLines is how many of the journal's last lines are searched for them.
	searchLines = "5000"
	maxLine     = 64 << 10
)

// ReadJournal returns Ignition's own log lines. It runs journalctl, if the initramfs has it.
//
// Ignition logs through syslog. A stage that fails prints the whole config to standard output, so
// standard output is filtered. Debian's units for the mount and files stages also log there, and
// each such line starts with its level. Only those lines are kept; no line of a config has that
// form.
func ReadJournal(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, journalTime)
	defer cancel()
	syslog, err := journalctl(ctx, anything, "--priority=4", "_TRANSPORT=syslog")
	if err != nil {
		return "", err
	}
	stdout, err := journalctl(ctx, logged, "_TRANSPORT=stdout")
	if err != nil {
		return "", err
	}
	return strings.Join(append(syslog, stdout...), "\n"), nil
}

var (
	anything = regexp.MustCompile(`.`)
	// logged matches Ignition's format of log lines at level warning and above
	// (internal/log/stdout.go).
	logged = regexp.MustCompile(`^(EMERGENCY|ALERT|CRITICAL|ERROR|WARNING) *: `)
)

// journalctl returns the last lines of this boot's Ignition that match.
func journalctl(ctx context.Context, wanted *regexp.Regexp, matches ...string) ([]string, error) {
	args := append([]string{"--boot", "--quiet", "--no-pager", "--output=cat", "--lines=" + searchLines,
		"SYSLOG_IDENTIFIER=ignition"}, matches...)
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	lines, err := last(out, wanted)
	if err != nil {
		// The remaining output is not needed.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	return lines, nil
}

// last returns the last journalLines lines that match.
func last(r io.Reader, wanted *regexp.Regexp) ([]string, error) {
	var lines []string
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	s.Split(splitLines)
	for s.Scan() {
		if line := s.Text(); wanted.MatchString(line) {
			if lines = append(lines, line); len(lines) > journalLines {
				lines = lines[1:]
			}
		}
	}
	return lines, s.Err()
}

// splitLines is bufio.ScanLines, except that it truncates a line that exceeds the buffer instead of
// failing. A config can be one line of a megabyte.
func splitLines(data []byte, atEOF bool) (int, []byte, error) {
	if advance, token, err := bufio.ScanLines(data, atEOF); advance > 0 || token != nil || err != nil {
		return advance, token, err
	}
	if len(data) >= maxLine {
		return len(data), data, nil
	}
	return 0, nil, nil
}
