import { constants, setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { type LoadResult, loadConfig } from './file.ts';
import type { LoadReply, LoadTask } from './load-thread.ts';
import { splitPlain } from './plain-parts.ts';
import { buffersOf, listsOf, withoutLists } from './read-lists.ts';

// Checks come first. Elsewhere it would be the priority of the whole process.
// The lowest would get next to nothing on a busy host, and miss the deadline of a reload.
if (process.platform === 'linux') setPriority(constants.priority.PRIORITY_BELOW_NORMAL);
// The YAML parser reads a variable with every token. A plain object is read faster than the environment of a thread.
process.env = { ...process.env };
const { file, overrides } = workerData as LoadTask;
const replies = repliesTo(loadConfig(file, overrides));
const sendNext = (): void => {
  const reply = replies.shift();
  parentPort?.postMessage(reply, reply && 'lists' in reply ? buffersOf(reply.lists) : []);
};
parentPort?.on('message', sendNext);
sendNext();

function repliesTo(loaded: LoadResult): LoadReply[] {
  if ('problems' in loaded) return [loaded];
  const { value, folder } = loaded.plain;
  const parts = splitPlain({ value: withoutLists(value), folder });
  return [...parts.map((part) => ({ part })), { lists: listsOf(loaded.config) }];
}
