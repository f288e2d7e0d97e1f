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

const (
	journalTime = 5 * time.Second
	// journalLines is how many lines of Ignition's own are kept, from the end.
	journalLines = 40
	// searchLines is how far back they are looked for.
	searchLines = "5000"
	maxLine     = 64 << 10
)

// ReadJournal asks journalctl, where the initramfs has it, for Ignition's own
// log lines.
//
// Ignition logs through syslog. What it prints to standard output is another
// matter: when a stage fails, that is the whole config. But Debian's units for
// the mount and files stages log there as well, each line with its level in
// front; of standard output only such lines are taken, and a config has none.
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
	// logged is how Ignition writes the levels from warning up (internal/log/stdout.go).
	logged = regexp.MustCompile(`^(EMERGENCY|ALERT|CRITICAL|ERROR|WARNING) *: `)
)

// journalctl returns the last matching lines of this boot's ignition.
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
		// The rest is not wanted any more.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("journalctl: %w", err)
	}
	return lines, nil
}

// last keeps the last lines that match.
func last(r io.Reader, wanted *regexp.Regexp) ([]string, error) {
	var lines []string
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	s.Split(boundedLines)
	for s.Scan() {
		if line := s.Text(); wanted.MatchString(line) {
			if lines = append(lines, line); len(lines) > journalLines {
				lines = lines[1:]
			}
		}
	}
	return lines, s.Err()
}

// boundedLines is bufio.ScanLines, but it cuts a line that is too long for the
// buffer instead of giving up: a config can be one line of a megabyte.
func boundedLines(data []byte, atEOF bool) (int, []byte, error) {
	if advance, token, err := bufio.ScanLines(data, atEOF); advance > 0 || token != nil || err != nil {
		return advance, token, err
	}
	if len(data) >= maxLine {
		return len(data), data, nil
	}
	return 0, nil, nil
}
