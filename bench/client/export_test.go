// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import "io"

// ReadStream is what a client makes of a streamed answer.
func ReadStream(chat bool, body io.Reader) *Transcript {
	t := &Transcript{Status: 200, chat: chat}
	t.read(body, nil)
	return t
}

// ReadRefusal is what a client makes of an answer that isn't 200.
func ReadRefusal(status int, body io.Reader) *Transcript {
	t := &Transcript{Status: status}
	t.readRefusal(body)
	return t
}

// Events are the data of a stream's events.
func Events(body io.Reader) (list []string, err error) {
	r := newEventReader(body)
	for {
		b, err := r.next()
		if err != nil {
			return list, err
		}
		list = append(list, string(b))
	}
}
