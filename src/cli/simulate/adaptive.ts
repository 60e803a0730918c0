import { DEFAULT_RULES, MAX_FIXED, RULE_NAMES } from '../../simulator/laboratory/rules.ts';
import { SINK_CLASSES } from '../../simulator/laboratory/sink.ts';
import {
  type Command,
  CommandError,
  onlyPositional,
  readArgs,
  SWITCH,
  TEXT,
} from '../framework/command.ts';
import { runCases } from './adaptive-cases.ts';
import { DEFAULT_SEEDS, runLaboratory } from './laboratory.ts';

const help = `usage: sluice simulate adaptive [--rule LIST] [--sink LIST] [options]
       sluice simulate adaptive FILE [--case NAME] [--seed N] [--json]

Without FILE: compares rules that learn a limit on calls in flight, on virtual
time, on a catalogue of simulated servers (sinks). Every rule is compared with
the best fixed limit of the sink: the limit that an operator would set who
knows the server, found by a sweep. The whole catalogue takes about a minute
per rule.

  score      goodput x (best's mean round trip / mean round trip) x
             (1 - refused), where goodput is relative to the best fixed limit;
             1 is as good as that limit
  worst      score of the worst seed; all other figures are medians
  goodput    successful calls, relative to the best fixed limit
  rtt p99    mean and p99 round-trip time, relative to the best fixed limit
  in flight  mean calls in flight, relative to the best fixed limit
  refused    calls that were refused or timed out
  fair       Jain's fairness index over the clients: 1 is even
  sent peak  calls sent while the server refused, lost or held all of them, and
             the most in flight then, relative to those before
  settled    after each change, time until the goodput stays above 90 % of the
             new best fixed limit's, and calls in flight below 125 % or 3 more

  --rule LIST   rules to compare, such as aimd,fixed:20 (default
                ${DEFAULT_RULES.join(',')}): ${RULE_NAMES.join(', ')};
                fixed:N is a limit of N that does not learn, up to ${MAX_FIXED}
  --sink LIST   sinks by name, by a part of the name, or by class:
                ${SINK_CLASSES.join(', ')}
                (default: all)
  --list        list the sinks with their descriptions
  --seeds N     runs per rule and sink (default ${DEFAULT_SEEDS})
  --seed N      seed of the first run (default 1)
  --svg FILE    also draw the limit and the goodput over time, for one sink
  --json        one line per rule and sink: {rule, sink, class, seeds, best,
                score, worstScore, goodput, meanRtt, p99Rtt, inFlight, refused,
                fairness, sentInSpell, peakInSpell, settlingMs}; null is
                never

With FILE: runs every case of FILE. A client with an adaptive concurrency limit
sends to a simulated server. Calls in flight, rate, limit and round-trip
times, weighted by time, are compared with the expected ranges of the file.
Prints the ranges that are missed; with --case all ranges.

FILE has suites of cases. The layering of a suite places the limiter:

  retry(limiter(timeout(server)))           one permit per attempt
  limiter(retry(timeout(server)))           one permit and one timing per call
  limiter(retry(measure(timeout(server))))  one permit per call, every attempt
                                            timed

  --case NAME   only the cases of this name, with every range
  --seed N      seed of the servers' jitter (default 1)
  --json        one line per case: {suite, case, ok, held, of,
                missed: [{range, lo, hi, got}]}

Exit code 0, or with FILE 1 if a range is missed; 2 if arguments or the file
are invalid.

examples:
  sluice simulate adaptive --list
  sluice simulate adaptive --sink mm20                   one server, in detail
  sluice simulate adaptive --rule aimd,vegas --sink steady,halved
  sluice simulate adaptive --sink halved --seeds 1 --svg halved.svg
  sluice simulate adaptive test/vectors/arc-cases.json --case slow-link`;

/** Flags that only one of the two forms takes. */
const CASE_FLAGS = ['case'] as const;
const LABORATORY_FLAGS = ['rule', 'sink', 'seeds', 'list', 'svg'] as const;

export const simulateAdaptive: Command = {
  help,

  run(args, terminal) {
    const { values: flags, positionals } = readArgs(args, {
      case: TEXT,
      rule: TEXT,
      sink: TEXT,
      list: SWITCH,
      seeds: TEXT,
      seed: TEXT,
      svg: TEXT,
      json: SWITCH,
    });
    const hasFile = positionals.length > 0;
    const other = (hasFile ? LABORATORY_FLAGS : CASE_FLAGS).find((name) => name in flags);
    if (other !== undefined) {
      const form = hasFile ? 'no FILE' : 'FILE';
      throw new CommandError(`expected ${form} with \`--${other}\`; see --help`);
    }
    if (!hasFile) return runLaboratory(flags, terminal);
    return runCases(onlyPositional(positionals, 'FILE of cases'), flags, terminal);
  },
};
