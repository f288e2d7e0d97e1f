// SPDX-License-Identifier: Apache-2.0

package rehearsal_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// texts returns the fields of a message that can carry a text or bytes, also in the messages within it.
func texts(m protoreflect.MessageDescriptor, prefix string) (names []string) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		switch f.Kind() {
		case protoreflect.MessageKind:
			names = append(names, texts(f.Message(), prefix+string(f.Name())+".")...)
		case protoreflect.StringKind, protoreflect.BytesKind:
			names = append(names, prefix+string(f.Name()))
		default: // numbers
		}
	}
	return names
}

// An answer to a rehearsal has no field for a token, a ticket or a certificate. A message of an attestation, which
// could get one later, is in none of the answers.
func TestRehearse_ResponseHasNoRoomForAToken(t *testing.T) {
	result := []string{"explanation", "warnings", "correlation_id"}
	if got := texts((&mcsattestv1.RehearseResponse{}).ProtoReflect().Descriptor(), ""); !slices.Equal(got, result) {
		t.Errorf("RehearseResponse has %v", got)
	}
	challenge := []string{"sealed", "nonce", "tpm.credential_blob", "tpm.encrypted_secret", "pool", "origin",
		"cloud.azure_token_resource", "result.explanation", "result.warnings", "result.correlation_id"}
	got := texts((&mcsattestv1.RehearseChallengeResponse{}).ProtoReflect().Descriptor(), "")
	if !slices.Equal(got, challenge) {
		t.Errorf("RehearseChallengeResponse has %v", got)
	}
	methods := mcsattestv1.File_mcsattest_v1_attestation_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		rehearses := m.Name() == "RehearseChallenge" || m.Name() == "Rehearse"
		for _, message := range []protoreflect.MessageDescriptor{m.Input(), m.Output()} {
			if got := message.Name()[:min(8, len(message.Name()))] == "Rehearse"; got != rehearses {
				t.Errorf("%s has the message %s", m.Name(), message.Name())
			}
		}
	}
}
