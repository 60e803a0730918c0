/** Progress on standard error: what runs, the round, and the time left. In a terminal one line, else a line for each round. */

const WIDTH = 100;

export function startProgress(selected, rounds) {
  const isTerminal = process.stderr.isTTY === true;
  const leftOf = new Map(selected.map(({ name, rows }) => [name, rows.length * rounds * 2]));
  const secondsOf = new Map(selected.map(({ name, group }) => [name, group.secondsEach]));
  let startedAt;
  let lastRound = '';

  const expected = () =>
    [...leftOf].reduce((sum, [name, left]) => sum + left * secondsOf.get(name), 0);
  const total = expected();

  /** The expected seconds, corrected by how long the measurements so far have taken. */
  function secondsLeft() {
    const done = total - expected();
    const pace = done === 0 ? 1 : (performance.now() - startedAt) / 1000 / done;
    return Math.round(expected() * pace);
  }
  const say = (text) =>
    process.stderr.write(isTerminal ? `${text.padEnd(WIDTH).slice(0, WIDTH)}\r` : `${text}\n`);

  return {
    say,
    start() {
      startedAt = performance.now();
    },
    add(name, measurements) {
      leftOf.set(name, leftOf.get(name) - measurements);
    },
    show(name, round, what) {
      const place = `${name}: round ${round} of ${rounds}`;
      const left = `${Math.floor(secondsLeft() / 60)} min ${secondsLeft() % 60} s left`;
      if (isTerminal) say(`${place}, ${left}: ${what}`);
      else if (place !== lastRound) say(`${place}, ${left}`);
      lastRound = place;
    },
    end() {
      if (isTerminal) say('');
    },
  };
}
