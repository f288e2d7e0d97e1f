// SPDX-License-Identifier: Apache-2.0

// Package request defines the one request that evidence of the kind aws-sts signs:
// GetCallerIdentity of AWS's Security Token Service, in a form in which everything except four
// values is fixed.
//
// The node signs it (package attester) and sends those four values. The verifier rebuilds the
// request from them and from its own values. So a node cannot choose a method, path, query, body,
// host or header (CVE-2020-16250), and there is no URL whose parameters two parsers could read
// differently (CVE-2022-2385).
//
//	POST / HTTP/1.1
//	Host: sts.<region>.<the partition's suffix>
//	Content-Type: application/x-www-form-urlencoded; charset=utf-8
//	Content-Length: 43
//	X-Amz-Date: <amzDate>
//	X-Amz-Security-Token: <securityToken>
//	X-Mcs-Attest-Challenge: <base64url of the transcript>
//	Authorization: <authorization>
//
//	Action=GetCallerIdentity&Version=2011-06-15
//
// Every header except the last is signed. The agent uses this package, too, so it has few
// dependencies.
package request

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
)

// The fixed parts of the request.
const (
	Body            = "Action=GetCallerIdentity&Version=2011-06-15"
	ContentType     = "application/x-www-form-urlencoded; charset=utf-8"
	ChallengeHeader = "X-Mcs-Attest-Challenge"
	// SignedHeaders is the exact list that Authorization must have.
	SignedHeaders = "content-length;content-type;host;x-amz-date;x-amz-security-token;x-mcs-attest-challenge"
	Service       = "sts"
	// TimeFormat is the format of X-Amz-Date.
	TimeFormat = "20060102T150405Z"
)

// Document is what a node sends. [Document.Encode] defines its only encoding.
type Document struct {
	Region        string `json:"region"`
	AmzDate       string `json:"amzDate"`
	SecurityToken string `json:"securityToken"`
	Authorization string `json:"authorization"`
}

// Encode returns the document's only encoding: JSON without white space, with the fields in this
// order.
func (d Document) Encode() []byte {
	out, _ := json.Marshal(d) // four strings
	return out
}

// Challenge returns the value of the header for the challenge.
func Challenge(transcript [32]byte) string {
	return base64.RawURLEncoding.EncodeToString(transcript[:])
}

// Partition is one of AWS's separate clouds.
type Partition struct {
	Name   string // as in ARNs
	suffix string // of host names
}

// The partitions by the prefixes of their regions' names; the first match is used. From the
// endpoint tables of aws-sdk-go-v2/service/sts v1.51.7. A new region in one of them needs no new
// release, but a new partition does.
var partitions = []struct {
	prefixes []string
	Partition
}{
	{[]string{"cn-"}, Partition{"aws-cn", "amazonaws.com.cn"}},
	{[]string{"us-gov-"}, Partition{"aws-us-gov", "amazonaws.com"}},
	{[]string{"eusc-"}, Partition{"aws-eusc", "amazonaws.eu"}},
	{[]string{"us-iso-"}, Partition{"aws-iso", "c2s.ic.gov"}},
	{[]string{"us-isob-"}, Partition{"aws-iso-b", "sc2s.sgov.gov"}},
	{[]string{"eu-isoe-"}, Partition{"aws-iso-e", "cloud.adc-e.uk"}},
	{[]string{"us-isof-"}, Partition{"aws-iso-f", "csp.hci.ic.gov"}},
	{[]string{"af-", "ap-", "ca-", "eu-", "il-", "me-", "mx-", "sa-", "us-"}, Partition{"aws", "amazonaws.com"}},
}

var region = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]{2,12}){1,2}-[0-9]{1,2}$`)

// PartitionOf returns the partition of a region, or false if the name is not that of a region.
func PartitionOf(name string) (Partition, bool) {
	if !region.MatchString(name) {
		return Partition{}, false
	}
	for _, p := range partitions {
		for _, prefix := range p.prefixes {
			if strings.HasPrefix(name, prefix) {
				return p.Partition, true
			}
		}
	}
	return Partition{}, false
}

// Host returns the host name of a region's STS, which is part of the signed request.
func Host(region string) (string, bool) {
	p, ok := PartitionOf(region)
	if !ok {
		return "", false
	}
	return "sts." + region + "." + p.suffix, true
}
