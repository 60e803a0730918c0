/** What the workers told, held against what is promised. */

/**
 * All permits of a run, in the order they were handed out, each with how long after the one before, and how long the system held
 * up the process until the caller had it: that is beyond anybody's rule.
 */
export function gapsOf(starts) {
  const inOrder = starts.toSorted((a, b) => a.at - b.at);
  return inOrder.slice(1).map(({ at, hadAt }, n) => ({
    at,
    ms: at - inOrder[n].at,
    hadMs: hadAt - inOrder[n].hadAt,
    heldUpMs: hadAt - at,
  }));
}

export function judge({ name, times, turns, quorumLost }, { gaps, asks, everyMs }) {
  const [from, to] = [turns[0].from, turns.at(-1).to];
  const own = gaps.filter(({ at }) => at >= from && at < to);
  const asked = asks.filter(({ at }) => at >= from && at < to);
  const backs = turns.map(({ over }) => (own.find(({ at }) => at >= over)?.at ?? Infinity) - over);
  return {
    name,
    times,
    permits: own.length,
    tooClose: own.filter(({ ms }) => ms < everyMs).length,
    hadTooClose: own.filter(({ hadMs }) => hadMs < everyMs).length,
    heldUpMs: Math.max(...own.map(({ heldUpMs }) => heldUpMs)),
    leastGapMs: Math.min(...own.map(({ ms }) => ms)),
    longestGapMs: Math.max(...own.map(({ ms }) => ms)),
    nextPermitMs: Math.max(...backs),
    use: (own.length * everyMs) / (to - from),
    asks: asked.length,
    slowestMs: Math.max(...asked.map(({ ms }) => ms)),
    ...(quorumLost && withoutQuorum(quorumLost, own, asks)),
  };
}

/** Nobody may be let in, and nothing may begin but what was handed out before: the next place, a moment ahead. */
function withoutQuorum({ from, to }, gaps, asks) {
  const asked = asks.filter(({ at, ms }) => at - ms >= from && at < to);
  return {
    askedWithout: asked.length,
    allowedWithout: asked.filter(({ verdict }) => verdict !== 'deny').length,
    begunWithout: gaps.filter(({ at }) => at >= from && at < to).length,
  };
}
