import { OptionReader } from '../../core/options.ts';
import { boundedDuration, readMillis } from './read-times.ts';
import type { ScenarioServer } from './scenario.ts';

const DISTRIBUTIONS = ['exponential', 'constant', 'log-normal'] as const;
const MAX_WORKERS = 100_000;
const MAX_QUEUE = 1_000_000;

export function readServer(value: unknown, path: string): ScenarioServer {
  const fields = OptionReader.collecting(path, value, 'an object with `workers` or `knee`');
  const hasKnee = fields.has('knee');
  if (hasKnee && fields.has('workers')) fields.report('workers', 'left out beside `knee`');
  if (hasKnee && fields.has('queue')) fields.report('queue', 'left out beside `knee`');
  const many = { min: 1, max: MAX_WORKERS, integer: true };
  const quota = fields.has('quota') ? fields.rate('quota') : undefined;
  const server: ScenarioServer = {
    workers: fields.number('workers', many, 1),
    timeMs: boundedDuration(fields, 'time', 50),
    distribution: fields.oneOf('distribution', DISTRIBUTIONS, 'exponential'),
    knee: hasKnee ? fields.number('knee', many) : undefined,
    maxQueue: fields.number('queue', { min: 0, max: MAX_QUEUE, integer: true }, MAX_QUEUE),
    quotaPerSecond: quota && (quota.count / quota.periodMs) * 1000,
    busy: fields.number('busy', { min: 0, max: 1 }, 0),
    pause: fields.has('pause') ? fields.tryRead(() => readPause(fields)) : undefined,
    rttMs: readMillis(fields, 'rtt', 1),
  };
  fields.finish();
  return server;
}

function readPause(fields: OptionReader): ScenarioServer['pause'] {
  const pause = OptionReader.collecting(
    fields.pathOf('pause'),
    fields.get('pause'),
    'an object with `every` and `for`',
  );
  const everyMs = boundedDuration(pause, 'every');
  const forMs = boundedDuration(pause, 'for');
  if (forMs >= everyMs) pause.report('for', 'shorter than `every`');
  pause.finish();
  return { everyMs, forMs };
}
