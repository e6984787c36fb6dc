// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// The loop of every driver: one task per line on standard input, one result per line on standard output, in the order
// in which the tasks end. ../../matrix/task.go describes both.
import { createInterface } from 'node:readline';

/** blank is the result of a task of which nothing came. */
export function blank() {
  return { text: '', finish_reason: null, tool_calls: [], partial_calls: [], usage: null, chunks: 0, error: null };
}

/**
 * serve answers tasks. run fills the result that it is given, and throws what its library throws; describe makes an
 * error object of that.
 */
export async function serve(run, describe) {
  const open = new Set();
  for await (const line of createInterface({ input: process.stdin })) {
    if (!line.trim()) continue;
    const task = JSON.parse(line);
    const one = answer(task, run, describe).then((r) => {
      process.stdout.write(JSON.stringify({ id: task.id, ...r }) + '\n');
      open.delete(one);
    });
    open.add(one);
  }
  await Promise.all(open);
}

async function answer(task, run, describe) {
  const result = blank();
  try {
    await run(task, result);
  } catch (e) {
    result.error = describe(e);
  }
  return result;
}

/** settle moves calls that the answer's end did not confirm to partial_calls. */
export function settle(result) {
  if (result.finish_reason !== 'tool_calls') {
    result.partial_calls.push(...result.tool_calls.splice(0));
  }
}

/** tool is the function that tasks with tools offer. */
export const tool = {
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' }, days: { type: 'array', items: { type: 'integer' } }, unit: { type: 'string' } },
    required: ['city'],
  },
};

/** ofOpenAI describes an error of the openai package. */
export function ofOpenAI(openai, e) {
  const out = { kind: 'other', class: e?.constructor?.name ?? typeof e, status: null, code: null, message: String(e?.message ?? e), body: null };
  if (e instanceof openai.APIConnectionError) {
    out.kind = 'transport';
  } else if (e instanceof openai.APIError) {
    out.kind = e.status === undefined ? 'stream' : 'status';
    out.status = e.status ?? null;
    out.code = e.code == null ? null : String(e.code);
    out.body = e.error ?? null;
  }
  return out;
}
