// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// encoded is an encoded message. All RPCs have this one type for connect, because connect adds 30 kB to
// the binary for each pair of message types.
type encoded struct{ raw []byte }

// codec copies encoded messages to and from the wire.
type codec struct{}

// Name implements connect.Codec.
func (codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (codec) Marshal(m any) ([]byte, error) { return m.(*encoded).raw, nil }

// Unmarshal implements connect.Codec. connect reuses raw.
func (codec) Unmarshal(raw []byte, m any) error {
	m.(*encoded).raw = slices.Clone(raw)
	return nil
}

// api has one client for each RPC.
type api struct {
	challenge, attest, certify, report, rehearseChallenge, rehearse *connect.Client[encoded, encoded]
}

func newAPI(c *http.Client, origin string) api {
	method := func(procedure string) *connect.Client[encoded, encoded] {
		return connect.NewClient[encoded, encoded](c, origin+procedure, connect.WithCodec(codec{}),
			connect.WithReadMaxBytes(maxResponse))
	}
	return api{
		challenge: method(mcsattestv1connect.AttestationChallengeProcedure),
		attest:    method(mcsattestv1connect.AttestationAttestProcedure),
		certify:   method(mcsattestv1connect.AttestationCertifyProcedure),
		report:    method(mcsattestv1connect.AttestationReportProcedure),

		rehearseChallenge: method(mcsattestv1connect.AttestationRehearseChallengeProcedure),
		rehearse:          method(mcsattestv1connect.AttestationRehearseProcedure),
	}
}

// call sends req with a method, and decodes the response into res.
func (s *Session) call(ctx context.Context, method *connect.Client[encoded, encoded], req, res proto.Message) error {
	raw, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	s.status.code = 0
	answer, err := method.CallUnary(ctx, connect.NewRequest(&encoded{raw}))
	if err == nil {
		if err = proto.Unmarshal(answer.Msg.raw, res); err == nil {
			return nil
		}
		err = connect.NewError(connect.CodeInvalidArgument, err)
	}
	return s.explain(err)
}
