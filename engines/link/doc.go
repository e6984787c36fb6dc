// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package link is the engine link: one stream socket between an agent and its engine host, on which many
// runs are multiplexed. The host side (Serve) drives an engines.Engine; the agent side (Client) is one.
// Process supervises a host as a child of its agent.
//
// It owns the frames, their limits, credits, and the life of the host process. It doesn't interpret rows,
// sample, keep snapshots or decide what happens after a loss.
//
// # Frames
//
// All integers are little endian. A frame is
//
//	offset 0  u32  payload length, this header not included
//	offset 4  u8   kind
//	offset 5       payload
//
// Payloads are one protobuf message of segue.engine.v1, or raw rows, or both:
//
//	message  the protobuf message, nothing else
//	mixed    u32 message length | protobuf message | raw rows up to the end of the frame
//	state    u32 run | u32 first row | raw rows up to the end of the frame
//
//	kind  name       from   payload  longest payload (R = row bytes, C = context length)
//	1     hello      both   message  Hello, 256 KiB
//	2     run        agent  message  Run, 24 MiB
//	3     state      agent  state    8 + max(1 MiB, R)
//	4     credit     agent  message  Credit, 1 KiB
//	5     cancel     agent  message  Cancel, 1 KiB
//	6     prompt     host   message  Prompt, 1 KiB + 5 C
//	7     prefilled  host   mixed    Prefilled, 1 KiB + max(1 MiB, R)
//	8     token      host   mixed    Token, 66 KiB + R
//	9     end        host   message  End, 8 KiB
//	10    facts      host   message  Facts, 1 KiB
//
// Rows are in the canonical layout of snapshot.Geometry and never split over frames. A frame's length is
// checked against its kind's limit before anything is read or allocated for it, and protobuf payloads are
// read piecewise, so announced bytes that never come cost little. A frame that breaks a rule ends the
// link with ErrProtocol: the two sides disagree about the stream, and no later frame can be trusted.
//
// # Order
//
// The agent sends hello, the host answers with its hello. The version must be equal on both sides. Then:
//
//   - run starts run number 1, 2, 3 … (rising; never reused on a link). With `from`, state frames follow
//     with all its rows in order; frames of other runs may lie between them. The engine starts after the
//     last row.
//   - The host answers with prompt and prefilled (fresh runs only) and token frames, in the order of
//     engines.Sink, and one end frame, after which it never names the run again. One Prefilled call of the
//     engine may become several frames of at most 1 MiB rows each (never less than one row).
//   - cancel, credit and state frames may cross the end frame on the way; the host ignores them for a run
//     that has ended.
//   - facts comes every 200 ms, whatever the runs do, and right before each end frame, so that counters
//     are current when Run returns on the agent.
//
// # Credits
//
// The run frame grants credit for n events (prompt, prefilled and token frames); the agent grants more
// only as its sink returns from earlier ones. Without credit the host's sink blocks, and with it the
// engine, as if the agent's sink were called directly. So at most n events of a run lie between the two
// sides, the agent's reader always has room for what arrives, and a slow run holds up neither other runs
// nor facts, ends and cancels. An event without credit is a protocol error. The agent returns credit for
// two events at once, half of its grant, which halves the wake-ups.
//
// One socket carries all runs since the life of the socket is the life of the host: its end tells of the
// loss of every run at one moment, nothing can outlive it, and there is one place for limits. Credits are
// what makes sharing it safe; without them one sink that waits for a holder's acknowledgement would stop
// the tokens of every other session.
//
// # Buffers
//
// The host writes a row with one writev from where the engine has it. The agent reads it into a buffer of
// its run, lent to the sink until the call returns; there are at most as many as credits. States are
// written from their blocks and read into fresh blocks of snapshot.BlockRows rows without copies between.
//
// # Goroutines and locks
//
// Serve starts one goroutine for each run and one for facts, and waits for all before it returns.
// Client.Serve reads on the caller's goroutine; Client.Run calls the sink on its caller's. Process.Run
// starts one goroutine for each child, which reaps it, and waits for it.
//
// Lock order: Client.startMu or host.factsMu, then frameWriter.mu. These three order what is written on
// the socket and are held while it is; nothing else is done under them. All other mutexes are leaves.
package link
