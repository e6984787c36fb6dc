// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

func (r *reader) toolCalls(at int) bool {
	if r.i < len(r.b) && r.b[r.i] == 'n' {
		return r.literal("null")
	}
	m, ok := r.open('[')
	if !ok {
		return r.bad()
	}
	c := &r.c.Choices[at]
	if c.toolCalls {
		return r.bad() // The member twice: two lists for one client.
	}
	c.toolCalls = true
	c.call0 = len(r.c.calls)
	for ok {
		var more bool
		if more, ok = r.next(&m, ']'); !more || !ok {
			break
		}
		if len(r.c.calls)-c.call0 == MaxCalls {
			return r.bad()
		}
		r.c.calls = append(r.c.calls, Call{index: -1})
		if ok = r.call(at, len(r.c.calls)-1); ok && r.c.calls[len(r.c.calls)-1].filled() {
			c.ContentBearing = true
		}
	}
	c.call1 = len(r.c.calls)
	return ok
}

func (k *Call) filled() bool { return isText(k.id) || isText(k.name) || isText(k.arguments) }

func (r *reader) call(at, call int) bool {
	m, ok := r.open('{')
	if !ok {
		return r.bad()
	}
	o := object{members: m}
	for ok {
		var more bool
		if more, ok = r.more(&o); !more || !ok {
			break
		}
		k := &r.c.calls[call]
		switch string(o.key) {
		case "index":
			v, fine := r.take(6)
			n, is := count(v)
			if !fine || !is && !isNull(v) || n >= MaxCalls {
				return fine && r.bad()
			}
			if is {
				k.index = n
			}
		case "id":
			mk := r.mark(&o, markCallID, at, call)
			k.id, ok = r.take(6)
			r.c.marks[mk].end = r.i
		case "function", "custom":
			k.custom = k.custom || o.key[0] == 'c'
			ok = r.function(k, at, call)
		default:
			ok = r.skip(6)
		}
	}
	if ok {
		r.finish(&o, markCallEnd, at, call)
	}
	return ok
}

func (r *reader) functionCall(at int) bool {
	c := &r.c.Choices[at]
	if !r.function(&c.function, at, -1) {
		return false
	}
	c.hasFunction = c.hasFunction || c.function.filled()
	c.ContentBearing = c.ContentBearing || c.hasFunction
	return true
}

// function reads name and arguments of a function, or name and input of a custom tool.
func (r *reader) function(k *Call, at, call int) bool {
	if r.i < len(r.b) && r.b[r.i] == 'n' {
		return r.literal("null")
	}
	m, ok := r.open('{')
	if !ok {
		return r.bad()
	}
	o := object{members: m}
	for ok {
		var more bool
		if more, ok = r.more(&o); !more || !ok {
			break
		}
		named := string(o.key) == "name"
		mk := -1
		if named {
			mk = r.mark(&o, markCallName, at, call)
		}
		var v []byte
		if v, ok = r.take(8); !ok {
			break
		}
		if mk >= 0 {
			r.c.marks[mk].end = r.i
		}
		isString := v[0] == '"'
		switch {
		case named:
			if !isString && !isNull(v) {
				return r.bad()
			}
			k.name = v
		case string(o.key) == "arguments" || string(o.key) == "input":
			if !isString && !isNull(v) {
				return r.bad()
			}
			k.arguments = v
		}
	}
	if ok {
		r.finish(&o, markFunctionEnd, at, call)
	}
	return ok
}
