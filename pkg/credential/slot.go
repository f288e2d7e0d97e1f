// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Slot is the position of the kubeconfig's token in a config. It stores only that file,
// and is safe for concurrent use.
type Slot struct {
	length     int          // of the config
	start, end int          // the part that changes
	was        secret.Bytes // config[start:end]

	sourceStart, sourceEnd int // of the data URL in was, without its quotes
	hashStart, hashEnd     int // of the hash in was, without its quotes; 0 if there is none

	how        source
	head, tail secret.Bytes // of the kubeconfig, around the token
}

// Find finds the kubeconfig in a config of specification 2.x or 3.x. It returns nil if the
// config has none. In order:
//
//   - the config is one JSON object, and no name on the path to the file occurs twice
//   - at most one of storage.files has the path, and nothing is appended to it
//   - its contents are a valid data URL with a matching hash, if any
//   - the kubeconfig has one token, the one that the kubelet uses
//
// The errors contain no secret.
func Find(config []byte) (*Slot, error) {
	root, ok := jsonspan.Parse(config)
	if !ok {
		return nil, errors.New("the config is not JSON")
	}
	storage, err := root.Get("storage")
	if err != nil {
		return nil, fmt.Errorf("parse the config: %w", err)
	}
	files, err := storage.Get("files")
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	file, err := fileIn(files)
	if err != nil {
		return nil, fmt.Errorf("storage.files: %w", err)
	}
	if file.None() {
		return nil, nil
	}
	s, err := find(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Path, err)
	}
	return s, nil
}

// fileIn returns the only file with the path, or none.
func fileIn(files jsonspan.Value) (file jsonspan.Value, err error) {
	for f := range files.Elements() {
		p, _, err := value(f, "path")
		if err != nil {
			return file, err
		}
		if path.Clean(p) != Path {
			continue
		}
		if !file.None() {
			return file, fmt.Errorf("two files have the path %s", Path)
		}
		file = f
	}
	return file, nil
}

// find returns the slot in a file.
func find(file jsonspan.Value) (*Slot, error) {
	if err := whole(file); err != nil {
		return nil, err
	}
	contents, err := file.Get("contents")
	if err != nil {
		return nil, err
	}
	url, at, err := value(contents, "source")
	if err != nil {
		return nil, err
	}
	compression, _, err := value(contents, "compression")
	if err != nil {
		return nil, err
	}
	verification, err := contents.Get("verification")
	if err != nil {
		return nil, err
	}
	hash, hashAt, err := value(verification, "hash")
	if err != nil {
		return nil, err
	}
	how, kubeconfig, err := readSource(url, compression, hash)
	if err != nil {
		return nil, err
	}
	start, end, err := token(kubeconfig)
	if err != nil {
		return nil, err
	}
	s := &Slot{
		length: len(file.Text), start: at.Start + 1, end: at.End - 1, how: how,
		head: secret.New(bytes.Clone(kubeconfig[:start])), tail: secret.New(bytes.Clone(kubeconfig[end:])),
	}
	if how.hash != "" {
		s.start, s.end = min(s.start, hashAt.Start+1), max(s.end, hashAt.End-1)
		s.hashStart, s.hashEnd = hashAt.Start+1-s.start, hashAt.End-1-s.start
	}
	s.sourceStart, s.sourceEnd = at.Start+1-s.start, at.End-1-s.start
	s.was = secret.New(bytes.Clone(file.Text[s.start:s.end]))
	return s, nil
}

// whole rejects a file with content from elsewhere: specification 2.x appends to a file
// and has more than one filesystem, and 3.x appends a list.
func whole(file jsonspan.Value) error {
	more, err := file.Get("append")
	if err != nil {
		return err
	}
	for range more.Elements() {
		return errors.New("other content is appended to it")
	}
	if !more.None() && !more.Is('[') && !more.Is('f') {
		return errors.New("other content is appended to it")
	}
	filesystem, _, err := value(file, "filesystem")
	if err != nil {
		return err
	}
	if filesystem != "" && filesystem != "root" {
		return errors.New("it is in another filesystem")
	}
	return nil
}

// value returns the string value of a name in an object, and its position.
func value(object jsonspan.Value, name string) (string, jsonspan.Value, error) {
	at, err := object.Get(name)
	if err != nil {
		return "", jsonspan.Value{}, err
	}
	v, ok := at.Str()
	if !ok && !at.None() {
		return "", jsonspan.Value{}, fmt.Errorf("%s is not a string", name)
	}
	return v, at, nil
}

// With returns the config that was passed to Find with another token, in three parts. The
// first and the last part are slices of config.
func (s *Slot) With(config []byte, token secret.Bytes) ([][]byte, error) {
	if !plain(string(token.Expose())) {
		return nil, errors.New("the token contains invalid characters")
	}
	return s.with(config, token)
}

// Without returns the config that was passed to Find with an empty token, in three parts as [Slot.With]
// does. A kubelet that already has its certificate reads only the server and its CA from the kubeconfig.
func (s *Slot) Without(config []byte) ([][]byte, error) { return s.with(config, secret.Bytes{}) }

func (s *Slot) with(config []byte, token secret.Bytes) ([][]byte, error) {
	if len(config) != s.length || !bytes.Equal(config[s.start:s.end], s.was.Expose()) {
		return nil, errors.New("the config is not the one that was searched")
	}
	// Quoted, because YAML would parse a bootstrap token of only digits as a number.
	file := make([]byte, 0, len(s.head.Expose())+len(s.tail.Expose())+len(token.Expose())+2)
	file = append(append(file, s.head.Expose()...), '"')
	file = append(append(file, token.Expose()...), '"')
	file = append(file, s.tail.Expose()...)
	url, err := s.how.url(file)
	if err != nil {
		return nil, err
	}
	was := s.was.Expose()
	if s.how.hash == "" {
		return [][]byte{config[:s.start], url, config[s.end:]}, nil
	}
	hash, _ := sum(s.how.hash, file)
	first, second := edit{s.sourceStart, s.sourceEnd, url}, edit{s.hashStart, s.hashEnd, []byte(hash)}
	if second.start < first.start {
		first, second = second, first
	}
	changed := bytes.Join([][]byte{first.with, was[first.end:second.start], second.with}, nil)
	return [][]byte{config[:s.start], changed, config[s.end:]}, nil
}

// edit replaces was[start:end].
type edit struct {
	start, end int
	with       []byte
}

// Format prevents fmt, and any logger, from printing the shared token.
func (s *Slot) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "[kubeconfig]")
}
