// SPDX-License-Identifier: Apache-2.0

// Package attester creates evidence of the kind aws-sts on a node: it signs a GetCallerIdentity
// request whose signed headers contain the transcript.
//
// The request is signed with the credentials of the instance's role. The secret access key does not
// leave this package. The evidence contains the session token, which is useless without the key.
//
// This is the one kind of evidence that needs the node's time: AWS rejects a signature whose date
// is off by more than a few minutes, and at a first boot a machine's clock may be wrong. So the
// caller provides the time. The Date header of the metadata service's responses is the host's time,
// and more reliable than the guest's clock.
package attester

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
)

// Document signs at the given time with the instance's credentials from the metadata service.
// Region is that of the instance.
func Document(ctx context.Context, c aws.Credentials, region string, transcript [32]byte,
	at time.Time) ([]byte, error) {
	host, ok := request.Host(region)
	if !ok {
		return nil, fmt.Errorf("aws-sts: %q is not a region of AWS", region)
	}
	if c.SessionToken == "" {
		return nil, errors.New("aws-sts: the credentials have no session token; they are not those of an instance's role")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+"/", strings.NewReader(request.Body))
	if err != nil {
		return nil, fmt.Errorf("aws-sts: %w", err)
	}
	r.Header.Set("Content-Type", request.ContentType)
	r.Header.Set(request.ChallengeHeader, request.Challenge(transcript))
	body := sha256.Sum256([]byte(request.Body))
	if err := v4.NewSigner().SignHTTP(ctx, c, r, hex.EncodeToString(body[:]), request.Service, region,
		at.UTC()); err != nil {
		return nil, fmt.Errorf("aws-sts: sign: %w", err)
	}
	return request.Document{
		Region: region, AmzDate: r.Header.Get("X-Amz-Date"), SecurityToken: r.Header.Get("X-Amz-Security-Token"),
		Authorization: r.Header.Get("Authorization"),
	}.Encode(), nil
}
