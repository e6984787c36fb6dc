// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

import { ChatOpenAI, OpenAI } from '@langchain/openai';
import * as openai from 'openai';
import { ofOpenAI, serve, settle, tool } from './serve.mjs';

const used = (u) => (u ? { prompt_tokens: u.input_tokens, completion_tokens: u.output_tokens, total_tokens: u.total_tokens } : null);

async function run(task, result) {
  const fields = {
    model: task.model,
    apiKey: task.api_key,
    configuration: { baseURL: task.base_url, defaultHeaders: { 'X-Request-Id': task.request_id } },
    ...(task.max_retries == null ? {} : { maxRetries: task.max_retries }),
  };
  if (task.endpoint !== 'chat') {
    await complete(new OpenAI({ ...fields, maxTokens: 64 }), task, result);
    return;
  }
  let model = new ChatOpenAI({ ...fields, streamUsage: true });
  if (task.tools) model = model.bindTools([{ type: 'function', function: tool }]);
  if (!task.stream) {
    take(await model.invoke(task.prompt), result);
    settle(result);
    return;
  }
  let whole;
  try {
    for await (const chunk of await model.stream(task.prompt)) {
      result.chunks++;
      whole = whole ? whole.concat(chunk) : chunk;
    }
  } finally {
    if (whole) take(whole, result);
    settle(result);
  }
}

/** take reads a message, or what there is of one. */
function take(message, result) {
  result.text = message.text;
  result.finish_reason = message.response_metadata?.finish_reason ?? null;
  result.usage = used(message.usage_metadata);
  result.tool_calls = (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.name, arguments: JSON.stringify(c.args) }));
}

async function complete(model, task, result) {
  if (task.stream) {
    for await (const text of await model.stream(task.prompt)) {
      result.chunks++;
      result.text += text;
    }
    return;
  }
  const answer = await model.generate([task.prompt]);
  const generation = answer.generations[0][0];
  result.text = generation.text;
  result.finish_reason = generation.generationInfo?.finishReason ?? null;
  const u = answer.llmOutput?.tokenUsage;
  result.usage = u?.totalTokens ? { prompt_tokens: u.promptTokens, completion_tokens: u.completionTokens, total_tokens: u.totalTokens } : null;
}

await serve(run, (e) => ofOpenAI(openai, e));
