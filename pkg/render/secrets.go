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

// Secret is something in a config that not everyone may have. It never holds the
// secret itself.
type Secret struct {
	// Path is the file's; empty for what is in no file.
	Path string `json:"path,omitempty"`
	// Where it is: "the file /etc/shadow", "the unit x.service", ...
	Where string `json:"where"`
	// What it is: "a private key".
	What string `json:"what"`
}

// Exposed is why a pre-approved render is refused: anyone would have these.
type Exposed struct {
	Pool string
	// Secrets by the name of the MachineConfig, in the order of the merge.
	Secrets []FoundSecret
}

// FoundSecret is a secret and the MachineConfig that it comes from.
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
	return fmt.Sprintf("anyone would have %s: %s of MachineConfig %s%s", first.What, first.Where,
		first.MachineConfig, more)
}

// Secrets are what a search of the MachineConfig finds. It is searched once.
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

// search collects what it finds, each thing in a place once.
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

// config searches everything in a config that can hold a secret.
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

// searchedApart are fields that are searched as what they are.
var searchedApart = map[reflect.Type][]string{
	reflect.TypeFor[types.Resource]():        {"Source", "HTTPHeaders"},
	reflect.TypeFor[types.Unit]():            {"Contents"},
	reflect.TypeFor[types.Dropin]():          {"Contents"},
	reflect.TypeFor[types.PasswdUser]():      {"PasswordHash"},
	reflect.TypeFor[types.PasswdGroup]():     {"PasswordHash"},
	reflect.TypeFor[types.KernelArguments](): {"ShouldExist"},
	reflect.TypeFor[types.Proxy]():           {"HTTPProxy", "HTTPSProxy"},
}

// strings searches every text of a part, whatever field it is in: mount options, those of
// RAIDs and LUKS volumes, URLs of tang servers, comments of users. A list of texts is
// searched as one, too: an option and its value may be two of them.
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

// passwordHash is one unless it stands for no password at all.
func (s *search) passwordHash(where string, hash *string) {
	if hash != nil && *hash != "" && *hash != "*" && *hash != "!" && *hash != "!!" {
		s.add("", where, "a password hash")
	}
}

// resource searches what is written out in a config. What a URL leads to is not in
// the config; the URL and the headers are.
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
		path = "" // whoever allows a file's contents has not read this URL
	}
	s.text(path, where, text)
}

// refused are the secrets that are in no file of the list.
func (o Options) refused(found []Secret) []Secret {
	return slices.DeleteFunc(slices.Clone(found),
		func(s Secret) bool { return s.Path != "" && slices.Contains(o.Allow, s.Path) })
}

// searched refuses a render with a secret: of each MachineConfig by itself, and of
// what they became together.
func (r *Rendered) searched(from []*MachineConfig, merged types.Config, o Options) error {
	e := &Exposed{Pool: r.Pool}
	for _, m := range from {
		for _, s := range o.refused(m.Secrets()) {
			e.Secrets = append(e.Secrets, FoundSecret{m.Name, s})
		}
	}
	if len(e.Secrets) == 0 {
		// Two halves make a whole: contents of one, their compression of another.
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

// from is the MachineConfig that a secret of the merged config comes from.
func (r *Rendered) from(s Secret) string {
	for _, o := range r.Origins {
		if o.Kind == "file" && o.Key == s.Path || s.Where == "the unit "+o.Key || s.Where == "the drop-in "+o.Key {
			return o.From
		}
	}
	return "?"
}
