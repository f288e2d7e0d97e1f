// Package attester makes evidence of the kind aws-sts on a node: it signs a
// GetCallerIdentity request whose signed headers hold the transcript.
//
// The signature is the instance's role's. The secret access key stays here; the
// session token goes along, and is of no use without it.
//
// This is the one kind of evidence for which the node's time matters: AWS refuses
// a signature whose date is off by more than a few minutes, and a machine's clock
// can be anywhere at its first boot. So the caller says what time it is. The Date
// header of the metadata service's answers is the host's time, and a better source
// than the guest's clock.
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

// Document signs at a time, with an instance's credentials as the metadata service
// gives them out. Region is the instance's own.
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
