// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package scrape reads the health of an inference server over HTTP, without using what it watches.
//
//	page --Page--> Facts --Track--> health.Reading          (pure)
//	server --Target.Read, Target.Probe--> the same          (HTTP)
//
// What each kind of server is asked for:
//
//	vllm      GET /metrics
//	sglang    GET /metrics; once per process GET /server_info for its chunk size.
//	          Never /health or /health_generate: both make it generate a token.
//	llamacpp  GET /props, then /metrics, or /slots where metrics are off
//	openai    GET /v1/models
//	proxy     GET /v1/models
//	auto      GET /v1/models and /metrics until one of the above is known
//
// What can be learnt from them, and what can't:
//
//   - vLLM counts steps with output. An unchunked prefill moves nothing, and its requests aren't counted as running
//     before their first step is over: Steps is false.
//   - SGLang's num_running_reqs is as old as its last log line, up to 30 s after the last request: where it counts the
//     seconds in which its scheduler was idle, those decide; elsewhere the smaller of gauge and open HTTP requests
//     does. Its count of open HTTP requests can leak when a request is aborted, and is trusted only while the scheduler
//     isn't idle.
//   - llama-server answers /metrics and /slots between two batches, so they are silent in a long one. /slots wakes a
//     sleeping server, /metrics of older versions too; /props, /health and /v1/models don't: /props is read first. Both
//     also count as work for --sleep-idle-seconds: a server that is read doesn't fall asleep by itself. A task queue that is
//     silent while /props answers has something to do: the reading is answered, with work and without progress.
//   - Where prompts are computed in chunks and their rate has been seen, Steps is true if a chunk takes no more than
//     MaxStep.
//   - A page with several engines (data parallel) moves when every engine that has work has moved: the others can't hide
//     one that hangs.
//   - Process start times that come back belong to several processes behind one address: a balancer, which is read as
//     a proxy from then on. One that balances connections, not requests, isn't noticed: a pooled connection stays with
//     one server. Give the servers behind it.
//
// Connections are pooled and of HTTP/1.1. A dead one costs one read, which ends with the caller's deadline; then it is
// closed.
package scrape
