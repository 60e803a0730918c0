/**
 * Sits in a thread of its own with a debugger on the main one, and writes down which functions of ours it enters.
 *
 * A call is walked twice. The first time V8 counts what runs; the second time there is a breakpoint at the door of each
 * of these functions, so that they are seen in their order and with who called them.
 */

import { Session } from 'node:inspector/promises';
import { parentPort, workerData } from 'node:worker_threads';

const { under } = workerData;
const alive = setInterval(() => {}, 1000); // what a session waits for keeps no thread alive
const session = new Session();
session.connectToMainThread();
const scripts = new Map();
session.on('Debugger.scriptParsed', ({ params }) => scripts.set(params.scriptId, params.url));
await session.post('Debugger.enable');
await session.post('Profiler.enable');
await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });

/** A frame of ours, as it is told; undefined for one of Node's. */
function stepOf({ location: { scriptId }, functionLocation, functionName, this: self }) {
  const url = scripts.get(scriptId);
  if (!url?.startsWith(under)) return undefined;
  const file = url.slice(under.length).replace(/\.js$/, '.ts');
  return { file, name: functionName, of: self.className, line: functionLocation.lineNumber + 1 };
}

let steps = [];
session.on('Debugger.paused', ({ params: { callFrames } }) => {
  const own = callFrames.map(stepOf).filter(Boolean);
  if (own.length > 0) steps.push({ ...own[0], depth: own.length });
  session.post('Debugger.resume');
});

/** Where in a text an offset is, as V8 wants to be told. */
function placeOf(text, offset) {
  const before = text.slice(0, offset).split('\n');
  return { lineNumber: before.length - 1, columnNumber: before.at(-1).length };
}

async function stopAtDoor(range) {
  const { locations } = await session.post('Debugger.getPossibleBreakpoints', range);
  if (locations.length === 0) return; // it has no body
  await session.post('Debugger.setBreakpoint', { location: locations[0] }).catch(() => {}); // it has one already
}

const calls = {
  /** Whatever ran until now does not count. */
  async forget() {
    await session.post('Profiler.takePreciseCoverage');
  },

  /** Sets breakpoints at the doors of what ran since. */
  async arm() {
    const { result } = await session.post('Profiler.takePreciseCoverage');
    for (const { scriptId, url, functions } of result) {
      if (!url.startsWith(under)) continue;
      const { scriptSource } = await session.post('Debugger.getScriptSource', { scriptId });
      const at = (offset) => ({ scriptId, ...placeOf(scriptSource, offset) });
      for (const { functionName, ranges } of functions) {
        const [{ startOffset, endOffset, count }] = ranges;
        const isModule = functionName === '' && startOffset === 0;
        if (count === 0 || isModule) continue;
        await stopAtDoor({ start: at(startOffset), end: at(endOffset), restrictToFunction: true });
      }
    }
    steps = [];
    await session.post('Debugger.setBreakpointsActive', { active: true });
  },

  async read() {
    await session.post('Debugger.disable');
    await session.post('Debugger.enable');
    return steps;
  },
};

parentPort.on('message', async ({ id, call }) => {
  try {
    parentPort.postMessage({ id, result: await calls[call]() });
  } catch (error) {
    parentPort.postMessage({ id, error: String(error) });
  }
});
clearInterval(alive);
parentPort.postMessage({ id: 0 });
