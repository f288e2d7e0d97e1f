// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// archiveCommit is a file that 'git archive' fills in (.gitattributes): "HASH TIME".
const archiveCommit = ".ci/archive-commit"

// origin returns the commit of a source tree, and its time. In a clone, the tree must be that commit, and
// a tag of the version's name must be on it.
func origin(ctx context.Context, source, version string) (commit string, date time.Time, err error) {
	raw, err := os.ReadFile(filepath.Join(source, archiveCommit))
	if err != nil {
		return "", date, err
	}
	text := string(raw)
	if strings.HasPrefix(text, "$Format") {
		if err := clean(ctx, source, version); err != nil {
			return "", date, err
		}
		if text, err = git(ctx, source, "log", "-1", "--format=%H %ct"); err != nil {
			return "", date, err
		}
	}
	commit, at, _ := strings.Cut(strings.TrimSpace(text), " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || len(commit) < 40 {
		return "", date, fmt.Errorf("%s: %q is not a commit and its time", archiveCommit, text)
	}
	return commit, time.Unix(seconds, 0).UTC(), nil
}

func clean(ctx context.Context, source, version string) error {
	changed, err := git(ctx, source, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the source tree has changes that are not committed:\n%s", changed)
	}
	head, err := git(ctx, source, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	// A tag that does not exist yet is fine: the release can be tried before it is tagged.
	tagged, err := git(ctx, source, "for-each-ref", "--format=%(objectname) %(*objectname)", "refs/tags/"+version)
	if err != nil || tagged == "" {
		return err
	}
	if !strings.Contains(tagged, strings.TrimSpace(head)) {
		return fmt.Errorf("the tag %s is on another commit", version)
	}
	return changelog(source, version)
}

// hasTag returns an error unless the source is a clone with the tag. [origin] checks the commit of the tag and the
// changelog.
func hasTag(ctx context.Context, source, version string) error {
	raw, err := os.ReadFile(filepath.Join(source, archiveCommit))
	if err != nil {
		return err
	}
	tag := ""
	if strings.HasPrefix(string(raw), "$Format") {
		if tag, err = git(ctx, source, "for-each-ref", "refs/tags/"+version); err != nil {
			return err
		}
	}
	if tag == "" {
		return fmt.Errorf("-key and -push need a clone that has the tag %s", version)
	}
	return nil
}

// changelog returns an error unless CHANGELOG.md has a section of the version, as keepachangelog.com has it.
func changelog(source, version string) error {
	raw, err := os.ReadFile(filepath.Join(source, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if section := "\n## [" + strings.TrimPrefix(version, "v") + "] - "; !strings.Contains(string(raw), section) {
		return fmt.Errorf("CHANGELOG.md has no section %q", strings.TrimSpace(section))
	}
	return nil
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	return output(ctx, dir, nil, "git", args...)
}

// output runs a command and returns what it prints. Env is added to the environment.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}
