// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Faults are the faults of an instance's metadata service.
type Faults struct {
	// Off disables the service on the instance: 403.
	Off bool
	// HopLimit loses the response to the token's PUT.
	HopLimit bool
	// NoTokens answers the PUT with 404, like a proxy that does not forward it.
	NoTokens bool
	// TokensOptional serves version 1, too.
	TokensOptional bool
	// Busy is how many requests are rejected before one is served, with BusyStatus (default 429).
	Busy, BusyStatus int
	// Delay is the time before each response.
	Delay time.Duration
	// Missing are paths without the version ("dynamic/instance-identity/rsa2048") that return 404.
	Missing []string
	// Replace has other content for a path.
	Replace map[string][]byte
}

const (
	tokenHeader = "X-Aws-Ec2-Metadata-Token"
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTTL      = 21600
)

var version = regexp.MustCompile(`^/(latest|[0-9]{4}-[0-9]{2}-[0-9]{2})/(.*)$`)

// Metadata returns the service of the instance.
func (c *Cloud) Metadata(id string) http.Handler {
	m := &metadata{cloud: c, id: id, tokens: map[string]time.Time{}}
	return http.HandlerFunc(m.serve)
}

type metadata struct {
	cloud *Cloud
	id    string

	mu     sync.Mutex
	tokens map[string]time.Time // expiry
	roles  *security
}

type security struct {
	Credentials
	made, expires time.Time
}

func (m *metadata) serve(w http.ResponseWriter, r *http.Request) {
	i, ok := m.cloud.instance(m.id)
	if !ok {
		http.Error(w, "", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Server", "EC2ws")
	w.Header().Set("Date", m.cloud.now().UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "text/plain")
	f := i.Faults
	if f.Delay > 0 {
		wait(r, f.Delay)
	}
	if busy(m.cloud, m.id) {
		status := f.BusyStatus
		if status == 0 {
			status = http.StatusTooManyRequests
		}
		refuse(w, status)
		return
	}
	if f.Off {
		refuse(w, http.StatusForbidden)
		return
	}
	if r.URL.Path == "/latest/api/token" {
		m.token(w, r, f)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	until, good := m.valid(r.Header.Get(tokenHeader))
	switch {
	case good:
		w.Header().Set(ttlHeader, strconv.Itoa(int(until.Sub(m.cloud.now()).Seconds())))
	case !f.TokensOptional || r.Header.Get(tokenHeader) != "":
		refuse(w, http.StatusUnauthorized)
		return
	}
	match := version.FindStringSubmatch(r.URL.Path)
	if match == nil {
		refuse(w, http.StatusNotFound)
		return
	}
	body, ok := m.read(i, match[2])
	if !ok {
		refuse(w, http.StatusNotFound)
		return
	}
	w.Header().Set("Accept-Ranges", "none")
	w.Header().Set("Last-Modified", i.Launch.Format(http.TimeFormat))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

// token answers the PUT. AWS rejects it if it came through a proxy.
func (m *metadata) token(w http.ResponseWriter, r *http.Request, f Faults) {
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	switch {
	case f.HopLimit:
		<-r.Context().Done()
	case f.NoTokens:
		refuse(w, http.StatusNotFound)
	case r.Method != http.MethodPut:
		w.Header().Set("Allow", "OPTIONS, PUT")
		refuse(w, http.StatusMethodNotAllowed)
	case r.Header.Get("X-Forwarded-For") != "":
		refuse(w, http.StatusForbidden)
	case err != nil || ttl < 1 || ttl > maxTTL:
		refuse(w, http.StatusBadRequest)
	default:
		token := base64.URLEncoding.EncodeToString(random(40))
		m.mu.Lock()
		m.tokens[token] = m.cloud.now().Add(time.Duration(ttl) * time.Second)
		m.mu.Unlock()
		w.Header().Set(ttlHeader, strconv.Itoa(ttl))
		w.Header().Set("Content-Length", strconv.Itoa(len(token)))
		fmt.Fprint(w, token)
	}
}

func (m *metadata) valid(token string) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.tokens[token]
	return until, ok && m.cloud.now().Before(until)
}

// read returns the content of a path. For the prefix of other paths it returns their list.
func (m *metadata) read(i Instance, path string) ([]byte, bool) {
	if slices.Contains(i.Faults.Missing, strings.TrimSuffix(path, "/")) {
		return nil, false
	}
	if body, ok := i.Faults.Replace[path]; ok {
		return body, true
	}
	all := m.tree(i)
	if body, ok := all[path]; ok {
		return body, true
	}
	folder := strings.TrimSuffix(path, "/") + "/"
	if path == "" {
		folder = ""
	}
	names := map[string]bool{}
	for name := range all {
		if rest, ok := strings.CutPrefix(name, folder); ok {
			first, _, deeper := strings.Cut(rest, "/")
			if deeper {
				first += "/"
			}
			names[first] = true
		}
	}
	if len(names) == 0 {
		return nil, false
	}
	return []byte(strings.Join(slices.Sorted(maps.Keys(names)), "\n")), true
}

func (m *metadata) tree(i Instance) map[string][]byte {
	host := "ip-" + strings.ReplaceAll(i.Address, ".", "-") + "." + i.Region() + ".compute.internal"
	blob := m.cloud.RSA2048(m.id)
	all := map[string][]byte{
		"dynamic/instance-identity/document": m.cloud.IdentityDocument(m.id),
		// The two old forms, which no client should read, with random bytes.
		"dynamic/instance-identity/signature":          lines(blob[:128]),
		"dynamic/instance-identity/pkcs7":              lines(blob[:len(blob)/2]),
		"dynamic/instance-identity/rsa2048":            lines(blob),
		"meta-data/ami-id":                             []byte("ami-0a1b2c3d4e5f60718"),
		"meta-data/hostname":                           []byte(host),
		"meta-data/instance-id":                        []byte(i.ID),
		"meta-data/instance-life-cycle":                []byte("on-demand"),
		"meta-data/instance-type":                      []byte("m6i.xlarge"),
		"meta-data/local-hostname":                     []byte(host),
		"meta-data/local-ipv4":                         []byte(i.Address),
		"meta-data/mac":                                []byte("0a:58:0a:00:80:11"),
		"meta-data/placement/availability-zone":        []byte(i.Zone),
		"meta-data/placement/region":                   []byte(i.Region()),
		"meta-data/services/domain":                    []byte(suffix(i.Region())),
		"meta-data/services/partition":                 []byte(partition(i.Region())),
		"meta-data/tags/instance/Name":                 []byte(i.Tags["Name"]),
		"meta-data/network/interfaces/macs/0/local-ip": []byte(i.Address),
	}
	if i.UserData != nil {
		all["user-data"] = i.UserData
	}
	if i.Role != "" {
		s := m.security(i)
		all["meta-data/iam/info"] = document(map[string]string{"Code": "Success", "LastUpdated": s.made.Format(time.RFC3339),
			"InstanceProfileArn": profileARN(i), "InstanceProfileId": "AIPA" + i.RoleID[4:]})
		all["meta-data/iam/security-credentials/"+i.Role] = document(map[string]string{"Code": "Success", "Type": "AWS-HMAC",
			"LastUpdated": s.made.Format(time.RFC3339), "Expiration": s.expires.Format(time.RFC3339),
			"AccessKeyId": s.AccessKeyID, "SecretAccessKey": s.SecretAccessKey, "Token": s.SessionToken})
	}
	return all
}

// security returns the role's credentials, which stay the same for hours.
func (m *metadata) security(i Instance) security {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.cloud.now(); m.roles == nil || now.After(m.roles.expires.Add(-time.Hour)) {
		made, expires := m.cloud.Credentials(i.ID)
		m.roles = &security{made, now.UTC().Truncate(time.Second), expires}
	}
	return *m.roles
}

func profileARN(i Instance) string {
	return fmt.Sprintf("arn:%s:iam::%s:instance-profile/%s", partition(i.Region()), i.Account, i.Profile)
}

func document(fields map[string]string) []byte {
	out, _ := json.MarshalIndent(fields, "", "  ") // strings only
	return out
}

func busy(c *Cloud, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.instances[id]
	if i == nil || i.Faults.Busy == 0 {
		return false
	}
	i.Faults.Busy--
	return true
}

// refuse answers like the service: an HTML page.
func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html><head><title>%d - "+
		"%s</title></head><body><h1>%[1]d - %[2]s</h1></body></html>\n", status, http.StatusText(status))
}

func wait(r *http.Request, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
}
