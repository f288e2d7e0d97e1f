// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Source is a merge or replace source that may belong to a Machine Config Server.
type Source struct {
	Where  string // for messages, for example "ignition.config.merge[0]"
	URL    string // as it is in the config
	Origin string // "https://host:port": lower case, port explicit
	Pool   string // the path's last element, as the server reads it
	Secure bool   // https
}

// configPrefix is the path below which a Machine Config Server serves configs.
const configPrefix = "/config/"

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// asSource parses a source's URL. It returns false if the URL cannot belong to a Machine Config
// Server.
func asSource(where, raw string) (Source, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.User != nil || u.Hostname() == "" {
		return Source{}, false
	}
	// url.Parse returns the scheme in lower case.
	port, ok := defaultPorts[u.Scheme]
	if !ok || !strings.HasPrefix(u.Path, configPrefix) || len(u.Path) == len(configPrefix) {
		return Source{}, false
	}
	if u.Port() != "" {
		port = u.Port()
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return Source{
		Where:  where,
		URL:    raw,
		Origin: fmt.Sprintf("%s://%s:%s", u.Scheme, host, port),
		Pool:   path.Base(u.Path),
		Secure: u.Scheme == "https",
	}, true
}

// matches reports whether the token for that origin and pool may be sent to s.
func (s Source) matches(origin, pool string) bool {
	return s.Secure && s.Origin == origin && s.Pool == pool
}
