// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

// The vocabulary: ids that spell the text of prompts below words, ids that the model proposes from there on.
const (
	vocabulary = 1 << 24

	// triples spell three ASCII bytes, pairs any two bytes, singles any one.
	triples = 0
	pairs   = triples + 1<<21
	singles = pairs + 1<<16
	spelled = singles + 1<<8

	// Control ids of the chat template and the end of a generation.
	beginMessage = words - 4
	endRole      = words - 3
	endMessage   = words - 2
	eog          = words - 1

	words = 1 << 22
)

// Classes of word ids, by their low bits. The rest are plain words.
const (
	classes = 64

	classNewline = 0
	// classLead+k is the beginning of a character that lacks k bytes, k = 1..3; classRest+k are k such bytes.
	classLead  = 0
	classRest  = 3
	classWhole = 7
	classComma = 8
	classStop  = 9
)

// lacks is how many bytes complete the character which id begins; 0 for ids that begin none.
func lacks(id int32) int {
	if k := int(id % classes); id >= words && k > classLead && k <= classLead+3 {
		return k - classLead
	}
	return 0
}

// piece is the text of an id. It is a function of the id alone and empty for ids that have no text.
func piece(id int32) []byte {
	switch {
	case id < 0 || id >= vocabulary:
		return nil
	case id < pairs:
		return []byte{byte(id >> 14 & 0x7f), byte(id >> 7 & 0x7f), byte(id & 0x7f)}
	case id < singles:
		return []byte{byte((id - pairs) >> 8), byte(id - pairs)}
	case id < spelled:
		return []byte{byte(id - singles)}
	case id < words:
		return nil
	}
	h := mix(uint64(id))
	rest := byte(0x80 | h>>8&0x3f)
	switch id % classes {
	case classNewline:
		return []byte("\n")
	case classLead + 1:
		return pick(h, " \xc3", "\xce", " \xd0", "\xe4\xbd", " \xf0\x9f\x98")
	case classLead + 2:
		return pick(h, " \xe4", "\xe5", "\xe6", " \xf0\x9f")
	case classLead + 3:
		return pick(h, " \xf0", "\xf0")
	case classRest + 1:
		return []byte{rest}
	case classRest + 2:
		return []byte{0x98, rest}
	case classRest + 3:
		return []byte{0x9f, 0x98, rest}
	case classWhole:
		return pick(h, " é", " ж", " 字", " 🙂", "ü")
	case classComma:
		return []byte(",")
	case classStop:
		return []byte(".")
	}
	return spell(h)
}

// spell makes a pronounceable word of two or three syllables, with a space before it.
func spell(h uint64) []byte {
	const consonants, vowels = "bdfghklmnprstvwz", "aeiou"
	w := append(make([]byte, 0, 8), ' ')
	for range 2 + h&1 {
		h >>= 4
		w = append(w, consonants[h&15], vowels[(h>>4&15)%uint64(len(vowels))])
		h >>= 4
	}
	return w
}

func pick(h uint64, of ...string) []byte {
	return []byte(of[h%uint64(len(of))])
}
