// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import "fmt"

// elementType is a ggml_type that a cache may have.
type elementType uint32

const (
	typeF32  elementType = 0
	typeF16  elementType = 1
	typeQ4x0 elementType = 2
	typeQ8x0 elementType = 8
	typeBF16 elementType = 30
)

// String is the type's name in a geometry; empty for types that no supported cache has.
func (t elementType) String() string {
	switch t {
	case typeF32:
		return "f32"
	case typeF16:
		return "f16"
	case typeQ4x0:
		return "q4_0"
	case typeQ8x0:
		return "q8_0"
	case typeBF16:
		return "bf16"
	}
	return ""
}

func parseElementType(name string) (elementType, error) {
	for _, t := range []elementType{typeF32, typeF16, typeQ4x0, typeQ8x0, typeBF16} {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("element type %q is unknown to llama.cpp's cache", name)
}
