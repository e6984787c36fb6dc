// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

import OpenAI, * as openai from 'openai';
import { ofOpenAI, serve, settle, tool } from './serve.mjs';

const completed = (u) => u && { prompt_tokens: u.prompt_tokens, completion_tokens: u.completion_tokens, total_tokens: u.total_tokens };

async function run(task, result) {
  const client = new OpenAI({ baseURL: task.base_url, apiKey: task.api_key, ...(task.max_retries == null ? {} : { maxRetries: task.max_retries }) });
  const options = { headers: { 'X-Request-Id': task.request_id } };
  const body = { model: task.model, stream: task.stream };
  if (task.stream) body.stream_options = { include_usage: true };
  const chat = task.endpoint === 'chat';
  if (chat) {
    body.messages = [{ role: 'user', content: task.prompt }];
    if (task.tools) body.tools = [{ type: 'function', function: tool }];
  } else {
    body.prompt = task.prompt;
  }
  const answer = await (chat ? client.chat.completions : client.completions).create(body, options);
  if (!task.stream) {
    const choice = answer.choices[0];
    result.text = (chat ? choice.message.content : choice.text) ?? '';
    result.finish_reason = choice.finish_reason;
    for (const c of (chat && choice.message.tool_calls) || []) {
      result.tool_calls.push({ id: c.id, name: c.function.name, arguments: c.function.arguments });
    }
    result.usage = completed(answer.usage);
    settle(result);
    return;
  }
  try {
    for await (const chunk of answer) {
      result.chunks++;
      if (chunk.usage) result.usage = completed(chunk.usage);
      const choice = chunk.choices[0];
      if (!choice) continue;
      result.text += (chat ? choice.delta?.content : choice.text) ?? '';
      if (choice.finish_reason) result.finish_reason = choice.finish_reason;
      for (const c of (chat && choice.delta?.tool_calls) || []) {
        const call = (result.tool_calls[c.index] ??= { id: '', name: '', arguments: '' });
        call.id += c.id ?? '';
        call.name += c.function?.name ?? '';
        call.arguments += c.function?.arguments ?? '';
      }
    }
  } finally {
    settle(result);
  }
}

await serve(run, (e) => ofOpenAI(openai, e));
