// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
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

// call sends req to a procedure, and decodes the response into res.
func (s *Session) call(ctx context.Context, procedure string, req, res proto.Message) error {
	raw, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	s.status.code = 0
	client := connect.NewClient[encoded, encoded](s.client, s.origin+procedure, connect.WithCodec(codec{}),
		connect.WithReadMaxBytes(maxResponse))
	answer, err := client.CallUnary(ctx, connect.NewRequest(&encoded{raw}))
	if err == nil {
		if err = proto.Unmarshal(answer.Msg.raw, res); err == nil {
			return nil
		}
		err = connect.NewError(connect.CodeInvalidArgument, err)
	}
	return s.explain(err)
}
