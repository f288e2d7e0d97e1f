// Package config reads the verifier's one configuration file.
//
// The addresses have a flag on "serve", too; the zero value of every field but
// Origins works. Relative paths are relative to the file's folder.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Config is mcs-attest.yaml.
type Config struct {
	// Data is the folder that holds everything else; default: the file's own.
	Data string `yaml:"data,omitempty"`
	// Origins are the https://host:port under which nodes reach this verifier,
	// exactly as the pointer configs name it, the port always explicit.
	Origins []string `yaml:"origins"`
	// Listen is the address of the gate and the attestation API. Default ":22623".
	Listen string `yaml:"listen,omitempty"`
	// MetricsListen is the address of metrics and health. Default "127.0.0.1:22680".
	MetricsListen string `yaml:"metricsListen,omitempty"`
	// Upstream is the real Machine Config Server, https://host:port. Empty: the
	// configs in Data/configs are served.
	Upstream string `yaml:"upstream,omitempty"`
	// UpstreamCA is the PEM file that the upstream's certificate is checked
	// with. Default: tls/ca.crt.
	UpstreamCA string `yaml:"upstreamCA,omitempty"`
	// UpstreamName is the name that the upstream's certificate must have, where
	// it differs from the host in Upstream.
	UpstreamName string `yaml:"upstreamName,omitempty"`
	// TrustedProxies are the networks whose X-Forwarded-For names the client.
	TrustedProxies []string `yaml:"trustedProxies,omitempty"`
	// KeyPublishDelay is how long a new key is published before it is used.
	// Default 10m; every replica must have read it by then.
	KeyPublishDelay Duration `yaml:"keyPublishDelay,omitempty"`
	// RequestsPerSecond bounds what one source address may ask of the
	// attestation API. Default 20, with a burst of twice as much.
	RequestsPerSecond float64 `yaml:"requestsPerSecond,omitempty"`
	// MaxConnections bounds open connections; default 4096. One source may have
	// a quarter of them.
	MaxConnections int `yaml:"maxConnections,omitempty"`
	// KeepEvidence is how many of the latest verified Attest calls are kept in
	// state/evidence for "appraise". Default 0.
	KeepEvidence int `yaml:"keepEvidence,omitempty"`
}

// Duration is a time.Duration written as "10m".
type Duration time.Duration

// UnmarshalYAML reads "90s", "10m", "2h".
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is not a duration; write for example 90s, 10m or 2h", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes it back.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// Load reads and checks a file. Errors name the file and, where YAML knows it, the line.
func Load(path string) (*Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var c Config
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.complete(base); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &c, nil
}

func (c *Config) complete(base string) error {
	if c.Data == "" {
		c.Data = base
	}
	if !filepath.IsAbs(c.Data) {
		c.Data = filepath.Join(base, c.Data)
	}
	if c.Listen == "" {
		c.Listen = ":22623"
	}
	if c.MetricsListen == "" {
		c.MetricsListen = "127.0.0.1:22680"
	}
	if c.UpstreamCA == "" {
		c.UpstreamCA = c.Path("tls", "ca.crt")
	}
	if !filepath.IsAbs(c.UpstreamCA) {
		c.UpstreamCA = filepath.Join(base, c.UpstreamCA)
	}
	if c.KeyPublishDelay == 0 {
		c.KeyPublishDelay = Duration(10 * time.Minute)
	}
	if c.RequestsPerSecond == 0 {
		c.RequestsPerSecond = 20
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 4096
	}
	return c.check()
}

func (c *Config) check() error {
	if len(c.Origins) == 0 {
		return errors.New(`origins: name at least one https://host:port, as the pointer configs have it`)
	}
	for i, o := range c.Origins {
		canon, err := Origin(o)
		if err != nil {
			return fmt.Errorf("origins: %w", err)
		}
		c.Origins[i] = canon
	}
	for _, p := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(p); err != nil {
			return fmt.Errorf("trustedProxies: %q is not a network such as 10.0.0.0/8", p)
		}
	}
	if c.Upstream != "" {
		u, err := url.Parse(c.Upstream)
		if err != nil || u.Scheme != "https" || u.Host == "" || (u.Path != "" && u.Path != "/") || u.User != nil {
			return fmt.Errorf("upstream: %q is not https://host:port", c.Upstream)
		}
	}
	if c.RequestsPerSecond < 0 || c.MaxConnections < 0 || c.KeepEvidence < 0 {
		return errors.New("requestsPerSecond, maxConnections and keepEvidence must not be negative")
	}
	return nil
}

// Path is a path below the data folder.
func (c *Config) Path(elem ...string) string {
	return filepath.Join(append([]string{c.Data}, elem...)...)
}

// Issuer is the token's "iss": the first origin.
func (c *Config) Issuer() string { return c.Origins[0] }

// Origin returns the canonical form of an origin: https, lower case, port explicit.
func Origin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		(u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not an origin; write for example https://api-int.example.com:22623", s)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host + ":" + port, nil
}
