/** Compares what the workers reported with what the limit promises. */

/**
 * All permits of a run in the order they were granted: the gap to the one before, and how long the process stalled until
 * the caller had it, which no rule can bound.
 */
export function gapsOf(starts) {
  const inOrder = starts.toSorted((a, b) => a.at - b.at);
  return inOrder.slice(1).map(({ at, receivedAt }, n) => ({
    at,
    ms: at - inOrder[n].at,
    receivedGapMs: receivedAt - inOrder[n].receivedAt,
    stallMs: receivedAt - at,
  }));
}

export function judge({ name, times, rounds, quorumLost }, { gaps, checks, everyMs }) {
  const [from, to] = [rounds[0].from, rounds.at(-1).to];
  const permits = gaps.filter(({ at }) => at >= from && at < to);
  const decided = checks.filter(({ at }) => at >= from && at < to);
  const recoveries = rounds.map(
    ({ over }) => (permits.find(({ at }) => at >= over)?.at ?? Infinity) - over,
  );
  return {
    name,
    times,
    permits: permits.length,
    tooClose: permits.filter(({ ms }) => ms < everyMs).length,
    receivedTooClose: permits.filter(({ receivedGapMs }) => receivedGapMs < everyMs).length,
    stallMs: Math.max(...permits.map(({ stallMs }) => stallMs)),
    leastGapMs: Math.min(...permits.map(({ ms }) => ms)),
    longestGapMs: Math.max(...permits.map(({ ms }) => ms)),
    nextPermitMs: Math.max(...recoveries),
    utilisation: (permits.length * everyMs) / (to - from),
    checks: decided.length,
    slowestMs: Math.max(...decided.map(({ ms }) => ms)),
    ...(quorumLost && withoutQuorum(quorumLost, permits, checks)),
  };
}

/** No call may be allowed, and no permit may start except the next one, if it was granted ahead before. */
function withoutQuorum({ from, to }, permits, checks) {
  const decided = checks.filter(({ at, ms }) => at - ms >= from && at < to);
  return {
    checkedWithout: decided.length,
    allowedWithout: decided.filter(({ verdict }) => verdict !== 'deny').length,
    startedWithout: permits.filter(({ at }) => at >= from && at < to).length,
  };
}
