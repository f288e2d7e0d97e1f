// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Secret describes a secret in a config, without the secret itself.
type Secret struct {
	// Path is the file's path, or "" outside of files.
	Path string `json:"path,omitempty"`
	// Where is the location: "the file /etc/shadow", "the unit x.service", ...
	Where string `json:"where"`
	// What is the kind: "a private key".
	What string `json:"what"`
}

// Exposed is the error of a pre-approved render that contains secrets.
type Exposed struct {
	Pool string
	// Secrets by MachineConfig, in merge order.
	Secrets []FoundSecret
}

// FoundSecret is a secret and the MachineConfig that contains it.
type FoundSecret struct {
	MachineConfig string
	Secret
}

func (e *Exposed) Error() string {
	first := e.Secrets[0]
	more := ""
	if n := len(e.Secrets) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return fmt.Sprintf("every caller would receive %s: %s of MachineConfig %s%s", first.What, first.Where,
		first.MachineConfig, more)
}

// Secrets returns the secrets that a search of the MachineConfig finds. The result is cached.
func (m *MachineConfig) Secrets() []Secret {
	m.once.Do(func() {
		var s search
		if m.ignition != nil {
			s.config(*m.ignition)
		}
		for _, a := range m.Spec.KernelArguments {
			s.text("", "the kernel argument "+argumentName(a), []byte(a))
		}
		spec := m.Spec
		spec.Config.Raw, spec.KernelArguments = nil, nil
		s.strings("the MachineConfig's spec", reflect.ValueOf(spec))
		m.secrets = s.found
	})
	return m.secrets
}

// search collects findings without duplicates.
type search struct{ found []Secret }

func (s *search) add(path, where, what string) {
	if f := (Secret{path, where, what}); !slices.Contains(s.found, f) {
		s.found = append(s.found, f)
	}
}

func (s *search) text(path, where string, text []byte) {
	for _, what := range contents(text) {
		s.add(path, where, what)
	}
}

// config searches every field of a config that can contain a secret.
func (s *search) config(c types.Config) {
	for _, f := range c.Storage.Files {
		where := "the file " + f.Path
		if what := secretPath(f.Path); what != "" && (f.Contents.Source != nil || len(f.Append) > 0) {
			s.add(f.Path, where, what)
		}
		s.resource(f.Path, where, f.Contents)
		for _, a := range f.Append {
			s.resource(f.Path, where, a)
		}
	}
	for _, l := range c.Storage.Luks {
		where := "the LUKS volume " + l.Name
		if l.KeyFile.Source != nil {
			s.add("", where, "the key of an encrypted disk")
		}
		if l.Clevis.Custom.Config != nil {
			s.add("", where, "the configuration of a clevis pin")
		}
	}
	for _, u := range c.Systemd.Units {
		s.textOf("the unit "+u.Name, u.Contents)
		for _, d := range u.Dropins {
			s.textOf("the drop-in "+u.Name+"/"+d.Name, d.Contents)
		}
	}
	for _, u := range c.Passwd.Users {
		s.passwordHash("the user "+u.Name, u.PasswordHash)
	}
	for _, g := range c.Passwd.Groups {
		s.passwordHash("the group "+g.Name, g.PasswordHash)
	}
	for _, a := range c.KernelArguments.ShouldExist {
		s.text("", "the kernel argument "+argumentName(string(a)), []byte(a))
	}
	s.textOf("ignition.proxy", c.Ignition.Proxy.HTTPProxy)
	s.textOf("ignition.proxy", c.Ignition.Proxy.HTTPSProxy)
	for _, r := range append(slices.Clone(c.Ignition.Config.Merge), c.Ignition.Config.Replace) {
		s.resource("", "ignition.config", r)
	}
	for _, r := range c.Ignition.Security.TLS.CertificateAuthorities {
		s.resource("", "ignition.security.tls", r)
	}
	for _, list := range lists {
		items := reflect.ValueOf(list.of(&c))
		for i := range items.Len() {
			s.strings("the "+list.kind+" "+util.CallKey(items.Index(i)), items.Index(i))
		}
	}
	s.strings("ignition", reflect.ValueOf(c.Ignition))
}

// searchedApart are fields with a search of their own.
var searchedApart = map[reflect.Type][]string{
	reflect.TypeFor[types.Resource]():        {"Source", "HTTPHeaders"},
	reflect.TypeFor[types.Unit]():            {"Contents"},
	reflect.TypeFor[types.Dropin]():          {"Contents"},
	reflect.TypeFor[types.PasswdUser]():      {"PasswordHash"},
	reflect.TypeFor[types.PasswdGroup]():     {"PasswordHash"},
	reflect.TypeFor[types.KernelArguments](): {"ShouldExist"},
	reflect.TypeFor[types.Proxy]():           {"HTTPProxy", "HTTPSProxy"},
}

// strings searches every string of a part, in any field: mount options, options of RAIDs and
// LUKS volumes, URLs of tang servers, comments of users. It also searches a list of strings
// as one text, because an option and its value may be two of them.
func (s *search) strings(where string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			s.strings(where, v.Elem())
		}
	case reflect.String:
		s.text("", where, []byte(v.String()))
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.String {
			for i := range v.Len() {
				s.strings(where, v.Index(i))
			}
			return
		}
		var all []string
		for i := range v.Len() {
			all = append(all, v.Index(i).String())
			s.strings(where, v.Index(i))
		}
		s.text("", where, []byte(strings.Join(all, " ")))
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() || slices.Contains(searchedApart[v.Type()], field.Name) {
				continue
			}
			at := where
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				at += "." + name
			}
			s.strings(at, v.Field(i))
		}
	}
}

func (s *search) textOf(where string, text *string) {
	if text != nil {
		s.text("", where, []byte(*text))
	}
}

// passwordHash adds a password hash, unless it means that there is no password.
func (s *search) passwordHash(where string, hash *string) {
	if hash != nil && *hash != "" && *hash != "*" && *hash != "!" && *hash != "!!" {
		s.add("", where, "a password hash")
	}
}

// resource searches the contents that a config contains. The contents behind a URL are not in
// the config, but the URL and the headers are.
func (s *search) resource(path, where string, r types.Resource) {
	for _, h := range r.HTTPHeaders {
		if h.Value != nil && secretHeader(h.Name) {
			s.add(path, where, "a credential in an HTTP header")
		}
	}
	if r.Source == nil || *r.Source == "" {
		return
	}
	text, remote, err := written(r)
	if err != nil {
		s.add(path, where, "contents that cannot be searched ("+err.Error()+")")
		return
	}
	if remote {
		path = "" // the permission for a file's contents does not cover its URL
	}
	s.text(path, where, text)
}

// refused returns the secrets that are in no allowed file.
func (o Options) refused(found []Secret) []Secret {
	return slices.DeleteFunc(slices.Clone(found),
		func(s Secret) bool { return s.Path != "" && slices.Contains(o.Allow, s.Path) })
}

// searched rejects a render with a secret, in each MachineConfig by itself and in the merged
// config.
func (r *Rendered) searched(from []*MachineConfig, merged types.Config, o Options) error {
	e := &Exposed{Pool: r.Pool}
	for _, m := range from {
		for _, s := range o.refused(m.Secrets()) {
			e.Secrets = append(e.Secrets, FoundSecret{m.Name, s})
		}
	}
	if len(e.Secrets) == 0 {
		// Merging may combine the contents of one with the compression of another.
		var s search
		s.config(merged)
		for _, s := range o.refused(s.found) {
			e.Secrets = append(e.Secrets, FoundSecret{r.from(s), s})
		}
	}
	if len(e.Secrets) == 0 {
		return nil
	}
	return reason.Wrap(reason.ConfigUnavailable, e, "MachineConfigPool %s has no pre-approved part", r.Pool)
}

// from returns the MachineConfig that contains a secret of the merged config.
func (r *Rendered) from(s Secret) string {
	for _, o := range r.Origins {
		if o.Kind == "file" && o.Key == s.Path || s.Where == "the unit "+o.Key || s.Where == "the drop-in "+o.Key {
			return o.From
		}
	}
	return "?"
}
