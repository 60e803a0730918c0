/**
 * A worker with a debugger on the main thread, which records the functions of dist/ that it enters.
 *
 * A call is traced in two runs. In the first V8 counts which functions run. In the second each of these
 * has a breakpoint at its first statement, which gives the order and the call depth.
 */

import { Session } from 'node:inspector/promises';
import { parentPort, workerData } from 'node:worker_threads';

const { root } = workerData;
const alive = setInterval(() => {}, 1000); // pending session calls do not keep the thread alive
const session = new Session();
session.connectToMainThread();
const scripts = new Map();
session.on('Debugger.scriptParsed', ({ params }) => scripts.set(params.scriptId, params.url));
await session.post('Debugger.enable');
await session.post('Profiler.enable');
await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });

/** The function of a call frame; undefined for Node's own. */
function entryOf({ location: { scriptId }, functionLocation, functionName, this: self }) {
  const url = scripts.get(scriptId);
  if (!url?.startsWith(root)) return undefined;
  const file = url.slice(root.length).replace(/\.js$/, '.ts');
  return { file, name: functionName, of: self.className, line: functionLocation.lineNumber + 1 };
}

let entries = [];
session.on('Debugger.paused', ({ params: { callFrames } }) => {
  const frames = callFrames.map(entryOf).filter(Boolean);
  if (frames.length > 0) entries.push({ ...frames[0], depth: frames.length });
  session.post('Debugger.resume');
});

/** An offset as line and column, the form that V8 takes. */
function positionOf(text, offset) {
  const before = text.slice(0, offset).split('\n');
  return { lineNumber: before.length - 1, columnNumber: before.at(-1).length };
}

async function breakAtEntry(range) {
  const { locations } = await session.post('Debugger.getPossibleBreakpoints', range);
  if (locations.length === 0) return; // no body
  await session.post('Debugger.setBreakpoint', { location: locations[0] }).catch(() => {}); // already set
}

const commands = {
  /** Discards the counts so far. */
  async reset() {
    await session.post('Profiler.takePreciseCoverage');
  },

  /** Sets a breakpoint at the entry of each function that ran since. */
  async arm() {
    const { result } = await session.post('Profiler.takePreciseCoverage');
    for (const { scriptId, url, functions } of result) {
      if (!url.startsWith(root)) continue;
      const { scriptSource } = await session.post('Debugger.getScriptSource', { scriptId });
      const at = (offset) => ({ scriptId, ...positionOf(scriptSource, offset) });
      for (const { functionName, ranges } of functions) {
        const [{ startOffset, endOffset, count }] = ranges;
        const isModule = functionName === '' && startOffset === 0;
        if (count === 0 || isModule) continue;
        await breakAtEntry({
          start: at(startOffset),
          end: at(endOffset),
          restrictToFunction: true,
        });
      }
    }
    entries = [];
    await session.post('Debugger.setBreakpointsActive', { active: true });
  },

  async read() {
    await session.post('Debugger.disable');
    await session.post('Debugger.enable');
    return entries;
  },
};

parentPort.on('message', async ({ id, command }) => {
  try {
    parentPort.postMessage({ id, result: await commands[command]() });
  } catch (error) {
    parentPort.postMessage({ id, error: String(error) });
  }
});
clearInterval(alive);
parentPort.postMessage({ id: 0 });
