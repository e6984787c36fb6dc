// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package invariant_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
)

// trusting decodes a length and that many bytes, and allocates what the length says.
func trusting(b []byte) []byte {
	out := make([]byte, binary.LittleEndian.Uint32(b))
	copy(out, b[4:])
	return out
}

func TestWithinBytes_SeesATrustedLength(t *testing.T) {
	frame := []byte{0, 0, 0, 1, 'x'} // 16 MiB are promised, one byte comes
	var out []byte
	err := invariant.WithinBytes(1<<20, func() { out = trusting(frame) })
	if e, ok := errors.AsType[*invariant.AllocError](err); !ok || e.Allocated < 16<<20 || e.Limit != 1<<20 {
		t.Errorf("got %v after an allocation of %d bytes", err, len(out))
	}
	frame[3] = 0
	if err := invariant.WithinBytes(1<<20, func() { out = trusting(frame) }); err != nil {
		t.Error(err)
	}
}

func TestWithinBytes_SeesManySmallOnes(t *testing.T) {
	var keep [][]byte
	err := invariant.WithinBytes(1<<20, func() {
		for range 3 << 10 {
			keep = append(keep, make([]byte, 1<<10))
		}
	})
	if err == nil {
		t.Errorf("%d pieces of 1 KiB passed a limit of 1 MiB", len(keep))
	}
}

func TestWithinBytes_CountsWhatIsFreedAgain(t *testing.T) {
	sum := 0
	err := invariant.WithinBytes(1<<20, func() {
		for i := range 64 {
			b := make([]byte, 64<<10)
			b[i] = 1
			sum += len(trusting(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))))
		}
	})
	if err == nil {
		t.Errorf("%d bytes passed a limit of 1 MiB", sum)
	}
}
