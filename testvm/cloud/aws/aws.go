// SPDX-License-Identifier: Apache-2.0

// Package aws emulates the parts of Amazon EC2 that an attestation uses.
//
// [Cloud.Metadata] is the instance metadata service, version 2, that one instance finds at
// 169.254.169.254. It has the real paths, headers, token flow and status codes, and common faults.
// [Cloud.API] is the API that the verifier calls, with the real SDK or another client:
// DescribeInstances and GetInstanceTpmEkPub in EC2's query protocol, and GetCallerIdentity of STS.
// It computes the Signature Version 4 of every request again, so it rejects a modified request like
// AWS.
//
// Keys that are created here, one per region, sign instance identity documents in the exact form of
// the real ones. [Cloud.RegionCertificates] replaces AWS's published certificates. These keys are
// not secret, and their signatures are accepted only together with that file.
package aws

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options of a [Cloud]. The zero value works.
type Options struct {
	Now func() time.Time
}

// Instance is one virtual machine. [Cloud.Add] sets zero fields to plausible values.
type Instance struct {
	ID      string // i-0123456789abcdef0
	Zone    string // eu-central-1a; its region is the zone without the letter
	Account string // 12 digits
	VPC     string
	Subnet  string
	State   string // running
	Address string // private IPv4
	Launch  time.Time
	// Role is the IAM role's name. Empty means that the instance has no instance profile.
	Role string
	// RoleID is the role's unique id, AROA...
	RoleID string
	// Profile is the instance profile's name; empty means the role's name.
	Profile string
	Tags    map[string]string
	// UserData is the response for user-data; nil means 404.
	UserData []byte
	// EK are the endorsement keys of its NitroTPM, as SubjectPublicKeyInfo (DER), by EC2's name of
	// the key type: rsa-2048, ecc-sec-p384. Empty means that it has no TPM.
	EK map[string][]byte
	// Faults are the faults of its metadata service.
	Faults Faults
}

// Region returns the region of the zone.
func (i Instance) Region() string { return strings.TrimRight(i.Zone, "abcdefghijklmnopqrstuvwxyz") }

// ProviderID returns the spec.providerID of its Machine.
func (i Instance) ProviderID() string { return "aws:///" + i.Zone + "/" + i.ID }

// sessionARN returns the ARN of its role's session, as STS names it.
func (i Instance) sessionARN() string {
	return fmt.Sprintf("arn:%s:sts::%s:assumed-role/%s/%s", partition(i.Region()), i.Account, i.Role, i.ID)
}

func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

func suffix(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

// Cloud holds instances, keys, and the faults of the API. It is safe for concurrent use.
type Cloud struct {
	now func() time.Time

	mu        sync.Mutex
	instances map[string]*Instance
	regions   map[string]*region
	keys      map[string]key // by access key id
	faults    map[string]Fault
	calls     map[string]int
	operator  Credentials
}

type region struct {
	key         *rsa.PrivateKey
	certificate *x509.Certificate
}

// Credentials are an access key.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string // empty for a user's own key
}

// key is a [Credentials] with its purpose.
type key struct {
	Credentials
	account, arn, userID string
	expires              time.Time // zero: never
}

// New returns a cloud without instances.
func New(o Options) *Cloud {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Cloud{now: o.Now, instances: map[string]*Instance{}, regions: map[string]*region{}, keys: map[string]key{},
		faults: map[string]Fault{}, calls: map[string]int{}}
	c.operator = Credentials{AccessKeyID: "AKIA" + letters(16), SecretAccessKey: letters(40)}
	c.keys[c.operator.AccessKeyID] = key{Credentials: c.operator, account: "123456789012",
		arn: "arn:aws:iam::123456789012:user/mcs-attest", userID: "AIDA" + letters(17)}
	return c
}

// Operator returns the credentials that the verifier may use.
func (c *Cloud) Operator() Credentials { return c.operator }

// Add starts an instance and returns it with all fields set.
func (c *Cloud) Add(i Instance) Instance {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&i.ID, "i-0"+strings.ToLower(fmt.Sprintf("%x", random(8))))
	set(&i.Zone, "eu-central-1a")
	set(&i.Account, "123456789012")
	set(&i.VPC, "vpc-0a1b2c3d4e5f60718")
	set(&i.Subnet, "subnet-0a1b2c3d4e5f60718")
	set(&i.State, "running")
	set(&i.Address, "10.0.128.17")
	if i.Launch.IsZero() {
		i.Launch = c.now().Add(-time.Minute)
	}
	i.Launch = i.Launch.UTC().Truncate(time.Second)
	if i.Role != "" {
		set(&i.RoleID, "AROA"+letters(17))
		set(&i.Profile, i.Role)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[i.ID] = &i
	return i
}

// Change modifies an existing instance.
func (c *Cloud) Change(id string, change func(*Instance)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		change(i)
	}
}

// Remove deletes an instance, as EC2 does some time after its termination.
func (c *Cloud) Remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
}

func (c *Cloud) instance(id string) (Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.instances[id]
	if !ok {
		return Instance{}, false
	}
	return *i, true
}

// Credentials returns credentials of an instance's role, valid for six hours, as its metadata
// service does. Every call returns new ones; all of them work.
func (c *Cloud) Credentials(id string) (Credentials, time.Time) {
	i, _ := c.instance(id)
	made := Credentials{AccessKeyID: "ASIA" + letters(16), SecretAccessKey: letters(40),
		SessionToken: "IQoJb3JpZ2luX2VjE" + letters(380) + "=="}
	expires := c.now().Add(6 * time.Hour).UTC().Truncate(time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[made.AccessKeyID] = key{Credentials: made, account: i.Account, arn: i.sessionARN(),
		userID: i.RoleID + ":" + i.ID, expires: expires}
	return made, expires
}

// Session returns credentials of a role with a chosen session name. A role issues such credentials
// if not only EC2 may assume it.
func (c *Cloud) Session(account, role, roleID, session, arn string) Credentials {
	made := Credentials{AccessKeyID: "ASIA" + letters(16), SecretAccessKey: letters(40), SessionToken: letters(400)}
	if arn == "" {
		arn = fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", account, role, session)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[made.AccessKeyID] = key{Credentials: made, account: account, arn: arn, userID: roleID + ":" + session,
		expires: c.now().Add(time.Hour)}
	return made
}

// region returns a region's key and creates it on first use.
func (c *Cloud) region(name string) *region {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.regions[name]; r != nil {
		return r
	}
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // the system has no randomness
	}
	// The names are those of AWS's certificates, which do not contain the region.
	subject := pkix.Name{Country: []string{"US"}, Province: []string{"Washington State"}, Locality: []string{"Seattle"},
		Organization: []string{"Amazon Web Services LLC"}}
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(append([]byte{0x7e}, random(7)...)), Subject: subject,
		NotBefore: c.now().Add(-24 * time.Hour), NotAfter: c.now().AddDate(100, 0, 0),
		BasicConstraintsValid: true, IsCA: true, SignatureAlgorithm: x509.SHA256WithRSA,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		panic(err) // the template is ours
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	c.regions[name] = &region{k, certificate}
	return c.regions[name]
}

// RegionCertificates returns the file with the certificates of the named regions, in the form of
// the verifier's folder: each block after a line "# region:".
func (c *Cloud) RegionCertificates(names ...string) []byte {
	slices.Sort(names)
	var out strings.Builder
	out.WriteString("# Made by an emulator for tests.\n")
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(&out, "# region: %s\n%s", name,
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.region(name).certificate.Raw}))
	}
	return []byte(out.String())
}

// Fault is a fault of one operation of the API.
type Fault struct {
	// Status and Code are those of an error response, for example 503 and RequestLimitExceeded.
	Status int
	Code   string
	// Delay is the time before the response.
	Delay time.Duration
	// Times is how often the fault occurs; zero means until it is removed.
	Times int
	// Empty returns no instance, Double a second reservation with the same instance, Other another
	// instance's id, Extra an additional instance, Owner another account's id.
	Empty, Double, Extra bool
	Other, Owner         string
	// Body replaces the response; Type is its content type.
	Body []byte
	Type string
	// Location returns a redirect.
	Location string
}

// Fail injects a fault into an operation: DescribeInstances, GetInstanceTpmEkPub or
// GetCallerIdentity. The zero Fault removes it.
func (c *Cloud) Fail(operation string, f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[operation] = f
}

// Calls returns how often an operation was called, with a valid signature or without one; "" counts
// all operations.
func (c *Cloud) Calls(operation string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if operation != "" {
		return c.calls[operation]
	}
	all := 0
	for _, n := range c.calls {
		all += n
	}
	return all
}

func (c *Cloud) called(operation string) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[operation]++
	f := c.faults[operation]
	switch f.Times {
	case 0:
	case 1:
		delete(c.faults, operation)
	default:
		left := f
		left.Times--
		c.faults[operation] = left
	}
	return f
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// letters returns n random letters of those that AWS uses in ids.
func letters(n int) string {
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random(n))[:n]
}
