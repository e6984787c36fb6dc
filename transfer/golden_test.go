// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// goldenMessages are what the files of testdata/golden/v1 hold: one message of each kind of protocol version 1.
func goldenMessages() map[string]proto.Message {
	id, boot := bytes.Repeat([]byte{0xa5}, 16), bytes.Repeat([]byte{0x0b}, 16)
	return map[string]proto.Message{
		"hello":   &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: &seguev1.ReplicateHello{Version: 1, NodeId: "node-a", BootId: boot}}},
		"records": &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Records{Records: bytes.Repeat([]byte("SGR1"), 50)}},
		"welcome": &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Welcome{Welcome: &seguev1.ReplicateWelcome{
			Version: 1, NodeId: "node-b", BootId: boot, Offers: []*seguev1.ResumeOffer{
				{Session: id, Epoch: 1<<40 + 1, Base: 2, Rows: 300, Boundary: 17, Chain: boot, Seal: id},
				{Session: boot, Epoch: 1, Chain: id},
			},
		}}},
		"ack":    &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Ack{Ack: &seguev1.Ack{Session: id, Epoch: 1<<40 + 1, Base: 2, Rows: 300, Committed: 17}}},
		"reject": &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Reject{Reject: &seguev1.Reject{Session: id, Epoch: 1<<40 + 1, Base: 2, Reason: seguev1.Reason_REASON_STORE_FULL, Detail: "full"}}},
	}
}

func goldenBytes(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "golden", "v1", name+".bin"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Files are written once; every later build decodes them.
func TestGolden_DecodesForever(t *testing.T) {
	for name, want := range goldenMessages() {
		t.Run(name, func(t *testing.T) {
			b := goldenBytes(t, name)
			got := want.ProtoReflect().New().Interface()
			if err := (transfer.Codec{}).Unmarshal(cut(b, 7), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			request, ok := want.(*seguev1.ReplicateRequest)
			if !ok {
				return
			}
			var f transfer.Frame
			if err := (transfer.Codec{}).Unmarshal(cut(b, 7), &f); err != nil {
				t.Fatal(err)
			}
			defer f.Free()
			if diff := cmp.Diff(request.GetHello(), f.Hello, protocmp.Transform()); diff != "" {
				t.Errorf("hello (-want +got)\n%s", diff)
			}
			records, err := io.ReadAll(f.Reader())
			if err != nil || !bytes.Equal(records, request.GetRecords()) {
				t.Errorf("records %x, %v", records, err)
			}
		})
	}
}

// A peer of this version reads what this build writes: the bytes are those of the files.
func TestGolden_EncodesTheSame(t *testing.T) {
	hello := marshal(t, &transfer.Frame{Hello: goldenMessages()["hello"].(*seguev1.ReplicateRequest).GetHello()})
	if !bytes.Equal(hello, goldenBytes(t, "hello")) {
		t.Errorf("hello is %x", hello)
	}
	rows := goldenMessages()["records"].(*seguev1.ReplicateRequest).GetRecords()
	records := marshal(t, &transfer.Frame{Records: [][]byte{rows[:99], rows[99:]}})
	if !bytes.Equal(records, goldenBytes(t, "records")) {
		t.Errorf("records are %x", records)
	}
	for _, name := range []string{"welcome", "ack", "reject"} {
		if b := protoBytes(t, goldenMessages()[name]); !bytes.Equal(b, goldenBytes(t, name)) {
			t.Errorf("%s is %x", name, b)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "v1", "*"))
	if err != nil || len(files) != len(goldenMessages()) {
		t.Errorf("golden files %v, %v", files, err)
	}
}
