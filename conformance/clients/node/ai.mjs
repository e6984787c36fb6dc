// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, jsonSchema, RetryError, StreamProviderError, streamText, tool as asTool } from 'ai';
import { serve, tool } from './serve.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;

const reason = (r) => (r === 'tool-calls' ? 'tool_calls' : r === 'content-filter' ? 'content_filter' : r);
const used = (u) =>
  u?.totalTokens == null ? null : { prompt_tokens: u.inputTokens, completion_tokens: u.outputTokens, total_tokens: u.totalTokens };
const call = (c) => ({ id: c.toolCallId, name: c.toolName, arguments: JSON.stringify(c.input) });

async function run(task, result) {
  const provider = createOpenAICompatible({
    name: 'segue', baseURL: task.base_url, apiKey: task.api_key, includeUsage: true, headers: { 'X-Request-Id': task.request_id },
  });
  const request = {
    model: task.endpoint === 'chat' ? provider.chatModel(task.model) : provider.completionModel(task.model),
    prompt: task.prompt,
  };
  if (task.max_retries != null) request.maxRetries = task.max_retries;
  if (task.tools) {
    request.tools = { [tool.name]: asTool({ description: tool.description, inputSchema: jsonSchema(tool.parameters) }) };
  }
  if (!task.stream) {
    const answer = await generateText(request);
    result.text = answer.text;
    result.finish_reason = reason(answer.finishReason);
    result.tool_calls = answer.toolCalls.map(call);
    result.usage = used(answer.usage);
    return;
  }
  let failed;
  for await (const part of streamText({ ...request, onError() {} }).fullStream) {
    result.chunks++;
    switch (part.type) {
      case 'text-delta':
        result.text += part.text;
        break;
      case 'tool-input-start':
        result.partial_calls.push({ id: part.id, name: part.toolName, arguments: '' });
        break;
      case 'tool-input-delta':
        result.partial_calls.find((c) => c.id === part.id).arguments += part.delta;
        break;
      case 'tool-call': // What an agent would execute.
        result.tool_calls.push(call(part));
        result.partial_calls = result.partial_calls.filter((c) => c.id !== part.toolCallId);
        break;
      case 'finish':
        if (part.finishReason !== 'error') result.finish_reason = reason(part.finishReason);
        result.usage = used(part.totalUsage);
        break;
      case 'error':
        failed ??= part.error;
        break;
    }
  }
  if (failed !== undefined) throw failed;
}

function describe(e) {
  if (RetryError.isInstance(e)) e = e.lastError;
  const out = { kind: 'other', class: e?.constructor?.name ?? typeof e, status: null, code: null, message: String(e?.message ?? e), body: null };
  if (APICallError.isInstance(e)) {
    out.kind = e.statusCode === undefined ? 'transport' : 'status';
    out.status = e.statusCode ?? null;
    try {
      out.body = JSON.parse(e.responseBody).error;
    } catch {
      out.body = null;
    }
  } else if (StreamProviderError.isInstance(e)) {
    out.kind = 'stream';
    out.body = e.data?.error ?? e.data ?? { code: e.code, type: e.type, message: e.message };
  } else if (e?.constructor === Object) {
    out.kind = 'stream';
    out.body = e;
  } else if (e?.cause?.code || e instanceof TypeError) {
    out.kind = 'transport';
  }
  out.code = out.body?.code == null ? null : String(out.body.code);
  return out;
}

await serve(run, describe);
